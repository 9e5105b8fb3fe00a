"""How processes of our own are started."""
