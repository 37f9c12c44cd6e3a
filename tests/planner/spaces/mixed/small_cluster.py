"""A small cluster of two kinds of devices: its file's text."""

from __future__ import annotations

CLUSTER = """\
schema_version: 1
name: small-mix
groups:
  - {device: a100-80gb, count: 4}
  - {device: v100-32gb, count: 4, name: old}
levels:
  - {name: nvlink, size: 4, bandwidth: 300 GB/s, latency: 4 us, efficiency: 0.8}
  - {name: fabric, bandwidth: 100 Gb/s, latency: 10 us}
source: {nvlink: a test, fabric: a test}
"""
