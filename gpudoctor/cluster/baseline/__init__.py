"""`gpudoctor baseline`: one node compared with its own healthy runs."""
