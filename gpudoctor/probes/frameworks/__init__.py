"""Work that needs separate processes: other frameworks, and the strategies of other libraries."""
