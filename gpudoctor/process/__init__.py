"""How processes of our own are started. Nothing of the node is read here, and nothing judged."""
