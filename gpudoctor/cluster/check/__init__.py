"""`gpudoctor cluster check`: many live nodes, checked and measured against each other."""
