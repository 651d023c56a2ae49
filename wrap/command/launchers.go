package command

import (
	"slices"
	"strings"
)

// layer describes how to read the options of a wrapper or a launcher. Options are
// written without leading dashes, and with _ in place of every other -.
type layer struct {
	words   string            // the words that invoke it
	takes   map[string]int    // options that take a value, and how many arguments the value takes up
	alone   []string          // options without a value
	same    map[string]string // other names of options → their canonical names
	module  []string          // options after which a module is named
	program []string          // options after which any program may be named
	starts  bool              // starts only Python files unless an option in module or program is given
}

// canonical returns the name by which this package looks up an option.
func (l layer) canonical(name string) string {
	if other, ok := l.same[name]; ok {
		return other
	}
	return name
}

// attached returns the short option at the start of an argument such as -n4, and whether
// that option takes a value.
func (l layer) attached(arg string) (string, bool) {
	if len(arg) < 3 || arg[1] == '-' {
		return "", false
	}
	return arg[1:2], l.takes[arg[1:2]] == 1
}

// opaque lists programs that hide the training program, each with the reason and with
// what the user can do instead.
var opaque = map[string]string{
	"bash": "shell scripts are not read; give headroom the command that the script runs", "sh": "shell scripts are not read; give headroom the command that the script runs",
	"zsh": "shell scripts are not read; give headroom the command that the script runs", "fish": "shell scripts are not read; give headroom the command that the script runs",
	"docker": "a container has files and processes of its own; run headroom inside it", "podman": "a container has files and processes of its own; run headroom inside it",
	"singularity": "a container has files of its own; run headroom inside it", "apptainer": "a container has files of its own; run headroom inside it",
	"sbatch": "it submits the job and exits; put headroom into the job's script", "qsub": "it submits the job and exits; put headroom into the job's script",
	"kubectl": "it submits the job and exits; put headroom into the container's command", "ray": "it submits the job and exits; put headroom into the job's command",
	"ssh": "it runs on another machine; run headroom there", "make": "makefiles are not read; give headroom the command that the makefile runs",
}

// launcherModules maps each module that is a launcher when python -m runs it to the words
// of that launcher in layers.
var launcherModules = map[string]string{
	"torch.distributed.run": "torchrun", "torch.distributed.launch": "torchrun",
	"accelerate.commands.launch": "accelerate launch", "accelerate": "accelerate launch",
	"deepspeed.launcher.runner": "deepspeed", "composer.cli.launcher": "composer",
}

func values(names string) map[string]int {
	m := map[string]int{}
	for _, name := range strings.Fields(names) {
		m[name] = 1
	}
	return m
}

// layers are the known wrappers and launchers, with the options that their --help lists.
var layers = []layer{
	{words: "env", takes: values("u unset C chdir"), alone: []string{"i", "ignore_environment", "v"}},
	{words: "nohup"},
	{words: "nice", takes: values("n adjustment")},
	{words: "uv run", takes: values(`with with_editable with_requirements extra no_extra group no_group only_group p python project
		directory env_file package index default_index index_url extra_index_url find_links refresh_package config_file cache_dir`),
		alone:  strings.Fields("no_sync locked frozen isolated active no_project all_extras all_groups no_dev dev only_dev exact q quiet v verbose offline no_cache no_config s script m module"),
		module: []string{"m", "module"}},
	{words: "conda run", takes: values("n name p prefix cwd"), alone: strings.Fields("no_capture_output live_stream v verbose s")},
	{words: "srun", takes: values(`n ntasks N nodes c cpus_per_task p partition t time J job_name A account w nodelist x exclude o output e error i input
		G gpus gres mem qos C constraint D chdir m distribution ntasks_per_node gpus_per_node gpus_per_task mem_per_cpu mem_per_gpu cpu_bind gpu_bind mpi export container_image container_mounts`),
		alone: strings.Fields("l label u unbuffered pty exclusive overlap K kill_on_bad_exit k no_kill v verbose Q quiet E preserve_env"),
		same:  map[string]string{"n": "ntasks", "N": "nodes"}},
	mpi("mpirun"), mpi("mpiexec"),
	{words: "torchrun", takes: values(`nnodes nproc_per_node node_rank master_addr master_port rdzv_backend rdzv_endpoint rdzv_id rdzv_conf max_restarts
		monitor_interval start_method role log_dir r redirects t tee local_addr logs_specs local_ranks_filter event_log_handler signals_to_handle numa_binding`),
		alone:  strings.Fields("standalone m module no_python run_path use_env use_agent_store"),
		module: []string{"m", "module"}, program: []string{"no_python"}, starts: true},
	{words: "accelerate launch", takes: values(`config_file num_processes num_machines machine_rank main_process_ip main_process_port mixed_precision gpu_ids
		num_cpu_threads_per_process dynamo_backend dynamo_mode rdzv_backend rdzv_conf max_restarts monitor_interval role tee log_dir same_network
		deepspeed_config_file deepspeed_hostfile deepspeed_multinode_launcher zero_stage offload_optimizer_device offload_param_device zero3_init_flag
		zero3_save_16bit_model gradient_accumulation_steps gradient_clipping fsdp_version fsdp_offload_params fsdp_min_num_params fsdp_sharding_strategy
		fsdp_auto_wrap_policy fsdp_transformer_layer_cls_to_wrap fsdp_state_dict_type fsdp_use_orig_params fsdp_activation_checkpointing fsdp_reshard_after_forward`),
		alone:  strings.Fields("multi_gpu cpu tpu mps use_deepspeed use_fsdp use_megatron_lm m module no_python q quiet debug dynamo_use_dynamic dynamo_use_fullgraph enable_cpu_affinity"),
		module: []string{"m", "module"}, program: []string{"no_python"}, starts: true},
	{words: "deepspeed", takes: values(`num_gpus num_nodes i include e exclude H hostfile master_addr master_port launcher launcher_args node_rank autotuning
		elastic_training min_elastic_nodes max_elastic_nodes venv_script ssh_port bind_core_list`),
		alone: strings.Fields("module no_python no_local_rank force_multi save_pid enable_each_rank_log bind_cores_to_rank no_ssh no_ssh_check"),
		same:  map[string]string{"i": "include"}, module: []string{"module"}, program: []string{"no_python"}, starts: true},
	{words: "composer", takes: values("n nproc world_size base_rank node_rank master_addr master_port stdout stderr"),
		alone: strings.Fields("v verbose m module_mode c command_mode"), same: map[string]string{"n": "nproc"},
		module: []string{"m", "module_mode"}, program: []string{"c", "command_mode"}, starts: true},
}

func mpi(words string) layer {
	takes := values("n np c x H host hostfile machinefile npernode map_by bind_to rank_by wdir wd ppn f output_filename")
	takes["mca"] = 2
	return layer{words: words, takes: takes, same: map[string]string{"np": "n", "c": "n"},
		alone: strings.Fields("allow_run_as_root oversubscribe tag_output report_bindings q v")}
}

// ranks determines how many processes train.
func (p *peeler) ranks() {
	l := &p.launch
	l.Devices = p.devices()
	inner := ""
	for _, name := range l.Layers {
		if name == "srun" || strings.HasPrefix(name, "mpi") || slices.Contains([]string{"torchrun", "accelerate launch", "deepspeed", "composer"}, name) {
			inner = name // the innermost one decides: srun in front of torchrun starts one launcher per machine
		}
	}
	switch inner {
	case "torchrun":
		p.torchrun()
	case "accelerate launch":
		p.count("num_processes", "accelerate takes it from its own configuration")
	case "deepspeed":
		p.deepspeed()
	case "composer":
		p.count("nproc", "composer starts one process per GPU")
		if o, ok := l.Option("world_size"); ok {
			l.Ranks = Number(o.Value)
		}
	case "srun":
		p.slurm()
	case "mpirun", "mpiexec":
		p.count("n", "the host file decides")
	default:
		p.byItself()
	}
	if inner != "" {
		l.Devices = 1 // a launcher gives each process its own GPU
	}
}

// devices returns the number of GPUs in CUDA_VISIBLE_DEVICES, or 0 if the variable is
// not set. If the variable hides all GPUs, devices returns 1, for the CPU.
func (p *peeler) devices() int {
	value, set := p.launch.Getenv(p.c, "CUDA_VISIBLE_DEVICES")
	switch {
	case !set:
		return 0
	case value == "" || value == "-1" || value == "NoDevFiles":
		return 1 // for the CPU
	}
	return strings.Count(strings.Trim(value, ","), ",") + 1
}

// byItself determines the ranks of a command without a launcher. There is one process,
// unless something else starts the command on every rank and sets WORLD_SIZE.
func (p *peeler) byItself() {
	p.launch.Ranks = 1
	if value, set := p.launch.Getenv(p.c, "WORLD_SIZE"); set {
		p.launch.Ranks, p.launch.Devices = Number(value), 1
		p.unknown("WORLD_SIZE", value)
	}
}

// count sets the number of ranks from the option called name. If that option is not
// given, the number is not known, and the string otherwise says why.
func (p *peeler) count(name, otherwise string) {
	o, given := p.launch.Option(name)
	if !given {
		p.launch.Why = "--" + name + " is not given: " + otherwise
		return
	}
	p.launch.Ranks = Number(o.Value)
	p.unknown("--"+name, o.Value)
}

// slurm takes the number of tasks from srun's options, or else from the allocation around it.
func (p *peeler) slurm() {
	p.count("ntasks", "the allocation decides")
	_, given := p.launch.Option("ntasks")
	if value, set := p.launch.Getenv(p.c, "SLURM_NTASKS"); set && !given {
		p.launch.Ranks, p.launch.Why = Number(value), ""
		p.unknown("SLURM_NTASKS", value)
	}
}

func (p *peeler) unknown(name, value string) {
	if p.launch.Ranks == 0 {
		p.launch.Why = name + " " + value + " does not give a fixed number of processes"
	}
}

// torchrun sets the number of ranks to the product of torchrun's number of machines and its
// processes per machine. Each is an option, or else a variable, which Kubeflow Trainer sets, or
// else 1.
func (p *peeler) torchrun() {
	p.launch.Ranks = 1
	for _, name := range []string{"nnodes", "nproc_per_node"} {
		o, given := p.launch.Option(name)
		from, value := "--"+name, o.Value
		if !given {
			from = "PET_" + strings.ToUpper(name)
			if value, given = p.launch.Getenv(p.c, from); !given {
				continue
			}
		}
		n := Number(value)
		if lo, hi, isRange := strings.Cut(value, ":"); isRange && lo == hi {
			n = Number(lo)
		}
		if n == 0 && (value == "gpu" || value == "auto") {
			n = p.devices() // still 0 if CUDA_VISIBLE_DEVICES is not set: Peel does not count the machine's GPUs
		}
		p.launch.Ranks *= n
		if p.unknown(from, value); n == 0 {
			return
		}
	}
}

func (p *peeler) deepspeed() {
	if o, ok := p.launch.Option("include"); ok {
		p.launch.Ranks = 0
		for _, host := range strings.Split(o.Value, "@") {
			if _, slots, some := strings.Cut(host, ":"); some {
				p.launch.Ranks += strings.Count(slots, ",") + 1
			}
		}
		p.unknown("--include", o.Value)
		return
	}
	p.count("num_gpus", "deepspeed starts one process per GPU of every host")
	if o, ok := p.launch.Option("num_nodes"); ok {
		p.launch.Ranks *= Number(o.Value)
		p.unknown("--num_nodes", o.Value)
	} else if _, hosts := p.launch.Option("hostfile"); hosts {
		p.launch.Ranks, p.launch.Why = 0, "--hostfile names the machines"
	}
}
