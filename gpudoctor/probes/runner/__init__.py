"""What every probe shares: launching ranks, what they say, their deadlines, and their end. No probe lives here."""
