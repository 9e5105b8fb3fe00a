"""What programs say, read by form: lines to statements, their class, and the catalogue of known error texts. Pure."""
