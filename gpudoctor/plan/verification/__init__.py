"""`gpudoctor plan --try`: compares the plan's predictions with the measurements of a few steps."""
