"""Figures of answers, described without a drawing library, and drawn as SVG, by plotly or by matplotlib."""
