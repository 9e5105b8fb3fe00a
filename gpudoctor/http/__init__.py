"""What the agent and the screen in a browser share as HTTP servers: address, access, bounded connections."""
