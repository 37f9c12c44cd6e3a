"""Operator graphs on devices: files in and out, an independent checker, reports."""
