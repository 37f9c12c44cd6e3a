"""A split per layer, chosen exactly: elimination over the graph and an integer program that check each other."""
