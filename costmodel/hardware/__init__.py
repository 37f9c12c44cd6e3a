"""A cluster: devices, hosts, the levels of links that join them, and the collectives that run over the links."""
