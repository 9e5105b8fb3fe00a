"""The shapes of facts and measurements: data only, nothing is read or judged here."""
