"""gpu.*: each GPU by itself and beside its peers. Links are in pcie and nvlink."""
