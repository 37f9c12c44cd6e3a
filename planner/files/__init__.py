"""Reading and writing the files of users: YAML with line marks, bundled configurations, networks, plans."""
