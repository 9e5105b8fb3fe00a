"""Redaction: remove from facts and texts what identifies a person, a machine or a part."""
