"""A network: its layers, one file per family, and the graph that joins them. The network of a cluster is in `costmodel.hardware`."""
