"""What the lines of each library, launcher and scheduler mean: one table a family, and their readers. No inference."""
