"""What every probe shares: launching ranks, their messages, deadlines and shutdown. No probe lives here."""
