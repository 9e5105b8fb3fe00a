"""What runs in processes of its own: other frameworks, and strategies of other libraries."""
