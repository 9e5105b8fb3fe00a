"""Table of patterns: errors of torch, and of Horovod, JAX, DeepSpeed and SGLang around it."""

from __future__ import annotations

from gpudoctor.diagnose.patterns.rows import rows

# Errors of torch: stores, gloo, data loaders, DDP, checkpoints, numerics. Source: torch 1.13 to 2.15
TORCH = rows(
    ("bootstrap_no_interface", "unable to find", r"Unable to find (?:address|interface) for: \S+"),
    # gloo: the address is that of the peer that exited first
    ("connect_stale", "connectfullmesh", r"connectFullMesh failed", "echo", 1, False),
    ("peer_lost", "connection closed by peer", r"Connection closed by peer \[(?P<peer>[^\]]{1,80})\]", "victim"),
    ("peer_lost", "connection reset by peer", r"Read error \[(?P<peer>[^\]]{1,80})\]\S* Connection reset by peer", "victim"),
    ("peer_lost", "gloo", r"gloo/transport/tcp/\S+\] (?:Connection closed|Read error|writev|sendmsg|Socket closed|Error (?:reading|writing))", "victim"),
    ("gloo_timeout", "timed out waiting|application timeout", r"Timed out waiting (?P<timeout_ms>\d+)ms for (?P<side>recv|send) operation|Application timeout caused pair closure", "wait"),
    ("collective_mismatch", "preamble", r"op\.preamble\.length <= op\.nbytes\. (?P<got>\d+) vs (?P<wanted>\d+)", "cause", 2, False),
    # rank 0 holds the store: a rank that prints this outlived rank 0
    ("store_lost", "should dump", r"Failed to check the \"should dump\" flag on TCPStore", "victim"),
    ("store_lost", "socketimpl", r"(?:sendBytes|recvValue\w*|recvVector|recvBytes) failed on SocketImpl"
     r"\(fd=\d+, addr=\[[^\]]*\]:\d+, remote=\[[^\]]{1,253}\]:\d+\)", "victim"),
    ("store_lost", "failed to recv, got 0 bytes|broken pipe", r"Failed to recv, got 0 bytes|(?:TCPStore|c10d|SocketImpl|DistNetworkError|DistBackendError).{0,200}Broken pipe", "victim"),
    # a rank that waits for a key waits for the rank that writes it; gloo's keys end in that rank
    ("store_timeout", "wait timeout", r"wait timeout after \d+ms, keys: (?:\S*/(?:cpu|cuda)//\d+/(?P<key_rank>\d+))?", "wait"),
    ("store_timeout", "store based barrier", r"store based barrier on rank.{0,120}?world_size=(?P<world>\d+), (?:worker_count|num_workers_joined)=(?P<joined>\d+)", "wait"),
    ("store_timeout", "uniqueid|other ranks", r"ret(?:rie|rei)ving ncclUniqueId from \[(?P<key_rank>\d+)\].{0,200}got error: (?:[Ww]ait timeout|Socket Timeout|Timeout)|there are other ranks that didn't finish", "wait"),
    ("store_timeout", "socket timeout", r"(?:RuntimeError|DistStoreError|DistNetworkError|c10d\S*): Socket Timeout\b", "wait"),
    ("store_lost", "store->get", r"store->get\('.{0,80}got error", "victim"),
    # Horovod: one of its processes ended and reported why before this
    ("peer_lost", "horovod|mpi communication peer", r"Horovod has been shut down|HorovodInternalError|MPI communication peer process has unexpectedly disconnected", "victim"),
    ("peer_timeout", "deepep", r"DeepEP\b.{0,80}\btimeout", "wait"),
    # JAX's coordination service; its other tasks are told by CoordinationReader
    ("process_died_unknown", "different incarnation", r"/job:[^/\s]{1,80}/(?:replica:\d+/)?task:(?P<task_rank>\d+) unexpectedly tried to connect with a different incarnation", "cause", 2),
    ("heartbeat_lost", "heartbeat timeout", r"Task /job:[^/\s]{1,80}/(?:replica:\d+/)?task:(?P<task_rank>\d+) heartbeat timeout", "cause", 2),
    ("store_lost", "coordination", r"(?:UNAVAILABLE|ABORTED|INTERNAL): .{0,300}[Cc]oordination", "victim"),
    ("store_timeout", "deadline_exceeded", r"DEADLINE_EXCEEDED: .{0,200}[Bb]arrier", "wait"),
    ("rendezvous_unreachable", "stop_waiting|client socket has", r"[Ss]top_waiting response is (?:expected|required)|client socket has (?:timed out|failed).{0,120}(?:while trying to connect|connect to)"),
    # torch goes on with the loopback address, which no other host reaches
    ("bootstrap_no_interface", "unable to resolve hostname", r"Unable to resolve hostname to a \(local\) address", "echo", 1),
    ("bootstrap_connect_failed", "gloo/transport", r"gloo/transport/\S+\] connect \[(?P<address>[0-9a-fA-F.:]{3,45})\]:\d+: (?:Connection refused|Connection timed out|No route to host)"),
    # SGLang ends its processes after it
    ("stalled", "watchdog_timeout", r"Watchdog timeout \(self\.watchdog_timeout=\d+", "cause", 3, False),
    ("rendezvous_unreachable", "etcd|connect() timed out", r"EtcdConnectionFailed|Connection to etcd failed|connect\(\) timed out\. Original timeout was \d+ ms"),
    # an agent that had been in the rendezvous lost the host of its store
    ("store_lost", "the rendezvous", r"has failed to (?:send a keep-alive heartbeat to|shutdown|close) the rendezvous .{0,200}RendezvousConnectionError", "victim"),
    ("rendezvous_closed", "rendezvous", r"RendezvousClosedError|[Rr]endezvous \S+ (?:has already been|is) closed", "wrapper", 1, False),
    ("rendezvous_unreachable", "rendezvousconnectionerror", r"RendezvousConnectionError", "echo", 2, False),
    ("rendezvous_unreachable", "hostname", r"hostname.{0,200}(?:Name or service not known|Temporary failure in name resolution)"
     r"|The IPv[46] network addresses of \([^)]*\) cannot be retrieved.{0,60}hostname", "echo", 2, False),
    ("rendezvous_timeout", "rendezvoustimeouterror| joined", r"RendezvousTimeoutError|waiting for (?:clients|workers)\. (?P<joined>\d+)/(?P<world>\d+) \w+ joined", "cause", 3, False),
    ("port_in_use", "address already in use|eaddrinuse", r"[Aa]ddress already in use|EADDRINUSE", "cause", 3, False),
    ("barrier_failed", "monitoredbarrier", r"(?P<ranks>Rank[s ]*[\d, ]+)(?:failed to pass|in) monitoredBarrier|Ranks? (?P<more>[\d, ]+) failed to pass monitoredBarrier", "cause", 3, False),
    ("peer_lost", "monitoredbarrier", r"reached monitoredBarrier, but received errors while waiting(?: for send/recv from rank (?P<named>\d+))?", "victim"),
    ("barrier_waits", "monitoredbarrier", r"(?:Detected rank|Please check rank) (?P<named>\d+).{0,80}monitoredBarrier|monitoredBarrier", "wait"),
    # FSDP; DeepSpeed; of torch's analyser of dumps, the incidents that are no question of how far a rank had come
    ("collective_mismatch", "order differs across ranks|disagreement between rank", r"(?:Forward|Backward) order differs across ranks|disagreement between rank\d+ and rank\d+", "cause", 3, False),
    ("collective_mismatch", "culprit rank", r"Culprit rank \d+; Error type: (?:SIZE_OR_SYNTAX|COLLECTIVE_TYPE|COLLECTIVE_DTYPE)_MISMATCH", "cause", 3, False),
    ("collective_mismatch", "detected mismatch between collectives", r"Detected mismatch between collectives on ranks", "cause", 3, False),
    ("config_mismatch", "ddp expects same model", r"DDP expects same model across all ranks, but Rank (?P<a>\d+) has (?P<a_params>\d+) params, "
     r"while rank (?P<b>\d+) has inconsistent (?P<b_params>\d+) params", "cause", 3, False),
    ("config_mismatch", "appears not to match", r"\[(?P<a>\d+)\]: params\[\d+\] in this process with sizes .{0,200}appears not to match"
     r"|params\[\d+\] in this process with sizes .{0,200}appears not to match", "cause", 3, False),
    ("shm_too_small_loader", "bus error|shm", r"DataLoader worker .{0,60}killed by signal: Bus error|[Uu]nexpected bus error encountered in worker|[Uu]nable to (?:allocate|open|write|mmap|resize).{0,120}shm", "cause", 3, False),
    ("shm_too_small_loader", "shared memory|torch_", r"insufficient shared memory|out of shared memory|unable to write to file </torch_\S+>", "cause", 3, False),
    ("loader_worker_killed", "dataloader worker", r"DataLoader worker \(pid(?:\(s\))? (?P<workers>[\d, ]+)\) (?:is killed by signal|exited unexpectedly)"),
    ("limit_nofile", "too many open files|ancdata", r"Too many open files|received \d+ items of ancdata"),
    ("limit_nproc", "resource temporarily unavailable", r"(?:pthread_create|fork|clone|thread_init|Thread creation|BlockingIOError|system_error|OSError).{0,80}Resource temporarily unavailable", "cause", 2, False),
    ("limit_nproc", "start new thread", r"can't start new thread", "cause", 3, False),
    ("file_damaged", "pytorchstreamreader|deserializing header|truncated", r"PytorchStreamReader failed (?:reading|locating)|[Ee]rror while deserializing header|UnpicklingError: pickle data was truncated", "cause", 3, False),
    ("file_damaged", "corrupt", r"unexpected EOF, expected \d+ more bytes\. The file might be corrupted", "cause", 3, False),
    ("disk_full", "no space left|quota", r"(?:Errno 28\]?|OSError|IOError|Exception|Error|write|\(28\)|os error 28).{0,120}No space left on device|No space left on device \(os error 28\)|Disk quota exceeded"),
    ("disk_full", "unexpected pos", r"unexpected pos \d+ vs \d+", "cause", 2),
    # torch.save, as of 2.0 and older; a full disk, a folder that is not there or may not be written
    ("checkpoint_not_written", "cannot be opened|parent directory", r"RuntimeError: File \S{1,400} cannot be opened|RuntimeError: Parent directory \S{1,400} does not exist", "cause", 2),
    ("disk_full", "pytorchstreamwriter|iostream error", r"PytorchStreamWriter failed writing|basic_ios::clear: iostream error", "cause", 2),
    ("fs_readonly", "read-only", r"Read-only file system"),
    ("stale_nfs", "stale", r"Stale (?:NFS )?file handle"),
    ("fs_error", "input/output error|errno 1", r"Errno 5\] Input/output error|(?:read|write)\(\): fd \d+ failed with Input/output error|Errno 121\] Remote I/O error|Errno 110\] Connection timed out: '/", "cause", 2),
    ("nan", "unexpected result", r"Unexpected result (?:nan|inf)"),
    ("nan", "nan", r"[Ll]oss is (?:nan|NaN)"
     r"|(?:FloatingPointError|AssertionError|ValueError|RuntimeError|\.NaN\w*).{0,120}\b(?:nan|NaN|NaNs)\b|contains? NaN"
     r"|Function '\w+' returned nan values"),
    # Lightning's own "loss" may be unused; its bar writes "nan.0"
    ("nan", "nan", r"(?i)\bgrad(?:ient)? ?norm[:= ]+nan\b|^(?!.{0,2000}\b\w{0,40}_loss[:= ]+-?\d).{0,2000}?\bloss[:= ]+nan\b", "cause", 2),
    ("nan", "nan", r"(?i)^(?!.{0,2000}\b(?:\w{1,20}_)?train(?:ing)?_loss(?:_\w{1,20})?[:= ]+-?\d).{0,2000}?\b(?:reduced_)?train(?:ing)?_loss[:= ]+nan\b", "cause", 2),
    ("nan", "loss scale already at minimum|minimum loss scale", r"loss scale already at minimum|Minimum loss scale reached"),
    # Apex has no minimum of its own: it halves the scale at every step that overflows
    ("nan", "reducing loss scale to", r"loss scaler \d+ reducing loss scale to (?:0(?:\.\d+)?|[\d.]+e-\d+)$"),
)  # fmt: skip
