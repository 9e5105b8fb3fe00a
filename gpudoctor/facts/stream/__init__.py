"""What `gpudoctor watch` writes line by line, and how a recording of it is read."""
