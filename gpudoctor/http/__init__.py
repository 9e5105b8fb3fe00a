"""What the agent and the served TUI share as HTTP servers: listen address, access control, bounded connections."""
