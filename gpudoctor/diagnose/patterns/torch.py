"""Errors of torch: stores, gloo, data loaders, DDP, checkpoints, numerics. Source: torch 1.13 to 2.15."""

from __future__ import annotations

from gpudoctor.diagnose.patterns.model import rows

TORCH = rows(
    ("bootstrap_no_interface", "unable to find", r"Unable to find (?:address|interface) for: \S+"),
    # gloo: the address is that of the peer that exited first
    ("connect_stale", "connectfullmesh", r"connectFullMesh failed|\] ERROR failed to connect, willRetry", "echo", 1, False),
    ("peer_lost", "connection closed by peer", r"Connection closed by peer \[(?P<peer>[^\]]{1,80})\]", "victim"),
    ("peer_lost", "connection reset by peer", r"Read error \[(?P<peer>[^\]]{1,80})\]\S* Connection reset by peer", "victim"),
    ("peer_lost", "gloo", r"gloo/transport/tcp/\S+\] (?:Connection closed|Read error|writev|sendmsg|Socket closed|Error (?:reading|writing))", "victim"),
    ("gloo_timeout", "timed out waiting", r"Timed out waiting (?P<timeout_ms>\d+)ms for (?P<side>recv|send) operation", "wait"),
    ("gloo_timeout", "application timeout", r"Application timeout caused pair closure", "wait"),
    ("collective_mismatch", "preamble", r"op\.preamble\.length <= op\.nbytes\. (?P<got>\d+) vs (?P<wanted>\d+)", "cause", 2, False),
    # rank 0 holds the store: a rank that prints this outlived rank 0
    ("store_lost", "should dump", r"Failed to check the \"should dump\" flag on TCPStore", "victim"),
    ("store_lost", "socketimpl", r"(?:sendBytes|recvValue\w*|recvVector|recvBytes) failed on SocketImpl"
     r"\(fd=\d+, addr=\[[^\]]*\]:\d+, remote=\[(?P<store>[^\]]{1,253})\]:\d+\)", "victim"),
    ("store_lost", "failed to recv, got 0 bytes", r"Failed to recv, got 0 bytes", "victim"),
    ("store_lost", "broken pipe", r"(?:TCPStore|c10d|SocketImpl|DistNetworkError|DistBackendError).{0,200}Broken pipe", "victim"),
    # a rank that waits for a key waits for the rank that writes it; gloo's keys end in that rank
    ("store_timeout", "wait timeout", r"wait timeout after \d+ms, keys: (?:\S*/(?:cpu|cuda)//\d+/(?P<key_rank>\d+))?", "wait"),
    ("store_timeout", "store based barrier", r"store based barrier on rank.{0,120}?world_size=(?P<world>\d+), (?:worker_count|num_workers_joined)=(?P<joined>\d+)", "wait"),
    ("store_timeout", "uniqueid", r"ret(?:rie|rei)ving ncclUniqueId from \[(?P<key_rank>\d+)\].{0,200}got error: (?:[Ww]ait timeout|Socket Timeout|Timeout)", "wait"),
    ("store_timeout", "other ranks", r"there are other ranks that didn't finish", "wait"),
    ("store_timeout", "socket timeout", r"(?:RuntimeError|DistStoreError|DistNetworkError|c10d\S*): (?:Socket Timeout|Timed out|Wait timeout)\b", "wait"),
    ("store_lost", "store->get", r"store->get\('.{0,80}got error", "victim"),
    # Horovod: one of its processes ended and reported why before this
    ("peer_lost", "horovod", r"Horovod has been shut down|HorovodInternalError", "victim"),
    ("peer_lost", "mpi communication peer", r"MPI communication peer process has unexpectedly disconnected", "victim"),
    ("peer_timeout", "deepep", r"DeepEP\b.{0,80}\btimeout", "wait"),
    # JAX's coordination service
    ("store_lost", "coordination", r"(?:UNAVAILABLE|ABORTED|INTERNAL): .{0,300}[Cc]oordination", "victim"),
    ("store_timeout", "deadline_exceeded", r"DEADLINE_EXCEEDED: .{0,200}[Bb]arrier", "wait"),
    ("rendezvous_unreachable", "stop_waiting", r"[Ss]top_waiting response is (?:expected|required)"),
    ("rendezvous_unreachable", "client socket has", r"client socket has (?:timed out|failed).{0,120}(?:while trying to connect|connect to)"),
    ("rendezvous_unreachable", "connect() timed out", r"connect\(\) timed out\. Original timeout was \d+ ms"),
    ("rendezvous_unreachable", "rendezvousconnectionerror", r"RendezvousConnectionError", "echo", 2, False),
    ("rendezvous_unreachable", "hostname", r"(?:Name or service not known|Temporary failure in name resolution|"
     r"The IPv[46] network addresses of \([^)]*\) cannot be retrieved)", "echo", 2, False),
    ("rendezvous_timeout", "rendezvoustimeouterror", r"RendezvousTimeoutError", "cause", 3, False),
    ("rendezvous_timeout", "clients joined", r"waiting for clients\. (?P<joined>\d+)/(?P<world>\d+) clients joined", "cause", 3, False),
    ("port_in_use", "address already in use", r"(?:EADDRINUSE|address already in use|Address already in use)", "cause", 3, False),
    ("port_in_use", "eaddrinuse", r"EADDRINUSE", "cause", 3, False),
    ("barrier_failed", "monitoredbarrier", r"(?P<ranks>Rank[s ]*[\d, ]+)(?:failed to pass|in) monitoredBarrier|Ranks? (?P<more>[\d, ]+) failed to pass monitoredBarrier", "cause", 3, False),
    ("peer_lost", "monitoredbarrier", r"reached monitoredBarrier, but received errors while waiting", "victim"),
    ("barrier_waits", "monitoredbarrier", r"(?:Detected rank|Please check rank) (?P<named>\d+).{0,80}monitoredBarrier|monitoredBarrier", "wait"),
    ("collective_mismatch", "detected mismatch between collectives", r"Detected mismatch between collectives on ranks", "cause", 3, False),
    ("config_mismatch", "ddp expects same model", r"DDP expects same model across all ranks, but Rank (?P<a>\d+) has (?P<a_params>\d+) params, "
     r"while rank (?P<b>\d+) has inconsistent (?P<b_params>\d+) params", "cause", 3, False),
    ("config_mismatch", "appears not to match", r"\[(?P<a>\d+)\]: params\[\d+\] in this process with sizes .{0,200}appears not to match"
     r"|params\[\d+\] in this process with sizes .{0,200}appears not to match", "cause", 3, False),
    ("user_exception_all", "finished reduction", r"Expected to have finished reduction in the prior iteration", "cause", 3, False),
    ("shm_too_small_loader", "bus error", r"DataLoader worker .{0,60}killed by signal: Bus error|[Uu]nexpected bus error encountered in worker", "cause", 3, False),
    ("shm_too_small_loader", "shm", r"[Uu]nable to (?:allocate|open|write|mmap|resize).{0,120}(?:shm|/torch_)", "cause", 3, False),
    ("shm_too_small_loader", "shared memory", r"insufficient shared memory|out of shared memory", "cause", 3, False),
    ("shm_too_small_loader", "torch_", r"unable to write to file </torch_\S+>", "cause", 3, False),
    ("loader_worker_killed", "dataloader worker", r"DataLoader worker \(pid(?:\(s\))? (?P<workers>[\d, ]+)\) (?:is killed by signal|exited unexpectedly)"),
    ("limit_nofile", "too many open files", r"Too many open files"),
    ("limit_nofile", "ancdata", r"received \d+ items of ancdata"),
    ("disk_full", "no space left", r"(?:Errno 28\]?|OSError|IOError|Exception|Error|write|\(28\)|os error 28).{0,120}No space left on device|No space left on device \(os error 28\)"),
    ("disk_full", "quota", r"(?:Errno 122|Disk quota exceeded)"),
    ("disk_full", "unexpected pos", r"unexpected pos \d+ vs \d+", "cause", 2),
    ("disk_full", "pytorchstreamwriter", r"PytorchStreamWriter failed writing", "cause", 2),
    ("disk_full", "iostream error", r"basic_ios::clear: iostream error", "cause", 2),
    ("fs_readonly", "read-only", r"Errno 30\b|Read-only file system"),
    ("stale_nfs", "stale", r"Errno 116\b|Stale (?:NFS )?file handle"),
    ("fs_error", "input/output error", r"Errno 5\] Input/output error|(?:read|write)\(\): fd \d+ failed with Input/output error", "cause", 2),
    ("fs_error", "remote i/o", r"Errno 121\] Remote I/O error|Errno 110\] Connection timed out: '/", "cause", 2),
    ("host_alloc_failed", "allocat", r"DefaultCPUAllocator: (?:can't allocate memory|not enough memory).{0,40}(?:allocate )?(?P<bytes>\d+)? ?|Unable to allocate [\d.]+ [KMGTPE]iB for an array"),
    ("host_alloc_failed", "cannot allocate memory", r"OSError: \[Errno 12\] Cannot allocate memory|^MemoryError"),
    ("nan", "in local", r"found (?:NaN|Inf) in local (?:grad|forward)"),
    ("nan", "unexpected result", r"Unexpected result (?:nan|inf)"),
    ("nan", "nan", r"[Ll]oss is (?:nan|NaN|inf|not finite)"
     r"|(?:FloatingPointError|AssertionError|ValueError|RuntimeError|\.NaN\w*).{0,120}\b(?:nan|NaN|NaNs)\b|contains? NaN"
     r"|Function '\w+' returned nan values"),
    ("nan", "nan", r"(?i)\bgrad(?:ient)? ?norm[:= ]+(?:nan|inf)\b|\bloss[:= ]+nan\b", "cause", 2),
    ("nan", "loss scale already at minimum", r"loss scale already at minimum"),
    ("nan", "minimum loss scale", r"Minimum loss scale reached"),
)  # fmt: skip
