"""gpu.*: each GPU alone and compared with its peers. Links are in pcie and nvlink."""
