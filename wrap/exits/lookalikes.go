package exits

// ambiguousTexts are error texts that indicate an out-of-memory failure only if little of
// a GPU's memory was free: wrong driver versions, bad labels and unsupported shapes cause
// the same errors.
var ambiguousTexts = []signature{
	{"cublas_status_not_initialized", "cuBLAS could not start"},
	{"cudnn_status_internal_error", "cuDNN failed internally"},
	{"cudnn_status_not_initialized", "cuDNN could not start"},
	{"cusolver_status_internal_error", "cuSOLVER failed internally"},
	{"cusolver_status_not_initialized", "cuSOLVER could not start"},
	{"cufft_internal_error", "cuFFT failed internally"},
	{"get was unable to find an engine", "cuDNN found no way to compute a convolution"},
	{"unable to find an engine to execute this computation", "cuDNN found no way to compute a convolution"},
	{"unable to find a valid cudnn algorithm to run convolution", "cuDNN found no way to compute a convolution"},
	{"cudnn_status_not_supported * non-contiguous", "cuDNN refused an input"},
	{"cudnn_status_execution_failed", "cuDNN failed internally"},
	{"cublas_status_internal_error", "cuBLAS failed internally"},
	{"nvml_success == r internal assert failed", "PyTorch's allocator could not query NVML, which it tries to do when memory runs out"},
	{"ur_result_error_out_of_resources", "the device driver reported that it was out of resources"},
	{"failed to get convolution algorithm", "cuDNN could not start"},
	{"dnn library is not found", "cuDNN could not start"},
	{"failed to run autotuned kernel", "a compiled kernel failed"},
	{"run_func_( * api call failed", "a compiled graph failed"},
}

// ambiguousHostTexts are error texts that indicate a lack of host memory only if ulimit
// sets a limit: oneDNN reports the same errors if it has no kernel for the tensors or the
// processor.
var ambiguousHostTexts = []signature{
	{"could not create a primitive", "oneDNN could not set up a computation"},
	{"could not execute a primitive", "oneDNN could not carry out a computation"},
}

// lookalikes are errors that mention memory, resources or a GPU, but that no other batch
// size would prevent.
var lookalikes = []signature{
	{"out of resource: shared memory", "a Triton kernel asks for more on-chip shared memory than the GPU has"},
	{"outofresources: out of resource", "a Triton kernel asks for more of an on-chip resource than there is"},
	{"too many resources requested for launch", "a kernel asks for more registers than the GPU has"},
	{"uses too much shared data", "a kernel asks for more on-chip shared memory than the GPU has"},
	{"more than 1eb memory", "a size was computed wrongly"},
	{"java.lang.outofmemoryerror", "Java's heap is full, not the machine's memory"},
	{"ibv_reg_mr", "locked memory is limited (ulimit -l)"},
	{"ibv_create_cq", "locked memory is limited (ulimit -l)"},
	{"ibv_create_qp", "locked memory is limited (ulimit -l)"},
	{"received message larger than max", "a message exceeded gRPC's limit"},
	{"resource_exhausted: quota", "a service's quota is used up"},
	{"ratelimiterror", "a service's rate limit was reached"},
	{"disk quota exceeded", "the disk quota is used up"},
	{"too many open files", "too many files are open (ulimit -n)"},
	{"received 0 items of ancdata", "too many files are open (ulimit -n)"},
	{"can't start new thread", "the thread limit was reached (ulimit -u)"},
	{"thread creation failed", "the thread limit was reached (ulimit -u)"},
	{"does not require grad", "the loss does not depend on anything that is trained"},
	{"device-side assert triggered", "a kernel's check failed, usually an index or a label out of range"},
	{"no kernel image is available", "this build does not support the GPU"},
	{"no cuda gpus are available", "no GPU is visible"},
	{"no cuda-capable device is detected", "no GPU is visible"},
	{"invalid device ordinal", "there is no GPU with that number"},
	{"all cuda-capable devices are busy or unavailable", "the GPU is in exclusive use"},
	{"driver version is insufficient", "the driver is too old"},
	{"found no nvidia driver", "there is no driver"},
	{"size mismatch for", "a checkpoint does not fit the model"},
	{"maximum recursion depth exceeded", "infinite recursion"},
	{"error -5: out of memory", "zlib's buffer ran out, not the machine's memory"},
	{"sqlite3.operationalerror", "SQLite failed"},
	{"not enough memory resources are available to process this command", "the page file is too small"},
}

// cascadeTexts are what other ranks, launchers and clean-up print after a failure.
var cascadeTexts = []signature{
	{"watchdog caught collective operation timeout", ""},
	{"some nccl operations have failed or timed out", ""},
	{"process group watchdog thread terminated with exception", ""},
	{"nccl communicator was aborted", ""},
	{"ncclremoteerror", ""},
	{"ncclsystemerror", ""},
	{"a remote process exited or there was a network error", ""},
	{"unhandled system error", ""},
	{"unhandled cuda error", ""},
	{"ncclunhandledcudaerror", ""},
	{"to avoid data inconsistency, we are taking the entire process down", ""},
	{"connection reset by peer", ""},
	{"connection closed by peer", ""},
	{"connectionreseterror", ""},
	{"connection refused", ""},
	{"connectionrefusederror", ""},
	{"broken pipe", ""},
	{"brokenpipeerror", ""},
	{"socket timeout", ""},
	{"timed out waiting", ""},
	{"wait timeout after", ""},
	{"timed out after", ""},
	{"store->get", ""},
	{"recvvalue failed", ""},
	{"childfailederror", ""},
	{"closing signal sigterm", ""},
	{"signalexception: process", ""},
	{"failed (exitcode:", ""},
	{"calledprocesserror", ""},
	{"processexitedexception", ""},
	{"processraisedexception", ""},
	{"can only test a child process", ""},
	{"exception ignored in", ""},
	{"eoferror", ""},
	{"the client socket has failed", ""},
	{"rendezvousconnectionerror", ""},
	{"diststoreerror", ""},
	{"distnetworkerror", ""},
	{"application timeout caused pair closure", ""},
	{"detected mismatch between collectives", ""},
	{"a worker process managed by the executor was unexpectedly terminated", ""},
	{"the actor died unexpectedly", ""},
	{"actordiederror", ""},
	{"workercrashederror", ""},
	{"resource_tracker: there appear to be", ""},
	{"has not been initialized, please make sure to call init_process_group", ""},
	{"engine core initialization failed", ""},
	{"coordination service", ""},
}

// confirmations are messages by which the kernel or a scheduler confirms that host memory
// ran out.
var confirmations = []signature{
	{"oom-kill:constraint=", "the kernel's log reports the OOM kill"},
	{"out of memory: killed process", "the kernel's log reports the OOM kill"},
	{"memory cgroup out of memory", "the kernel's log reports the OOM kill"},
	{"oom_kill event", "Slurm saw an OOM kill by the kernel"},
	{"oom-kill event", "Slurm saw an OOM kill by the kernel"},
	{"exceeded job memory limit", "Slurm ended the job at its memory limit"},
	{"exceeded memory limit", "the scheduler ended the job at its memory limit"},
	{"oomkilled", "Kubernetes saw an OOM kill by the kernel"},
	{"term_memlimit: job killed after reaching lsf memory usage limit", "LSF ended the job at its memory limit"},
	{"exceeded its requested memory", "the scheduler ended the job at its memory limit"},
}

// workerKills are messages saying that a process was killed. They do not show that memory
// was the reason.
var workerKills = []signature{
	{"is killed by signal: killed", "a data loader's worker was killed"},
	{"exited unexpectedly", "a data loader's worker ended"},
	{"exitcode: -9", "a rank was killed"},
	{"exitcode  : -9", "a rank was killed"},
	{"signal 9 (sigkill)", "a rank was killed"},
	{"sigkill: 9", "a process was killed"},
	{"terminated with signal sigkill", "a process was killed"},
	{"exited on signal 9", "a rank was killed"},
	{"exits with return code = -9", "a rank was killed"},
}
