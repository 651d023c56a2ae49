package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"headroom/runs"
)

// cluster starts Slurm with two nodes on this machine, and ends it after the test. It returns the environment in which Slurm's commands
// find it.
func cluster(t *testing.T) []string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("NO SLURM: its daemons need root; two nodes under Slurm were not tried")
	}
	for _, program := range []string{"slurmctld", "slurmd", "munged", "sbatch"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("NO SLURM: there is no %s; install slurm-wlm and munge to try two nodes under Slurm", program)
		}
	}
	dir := t.TempDir()
	for above := dir; above != "/tmp" && above != "/"; above = filepath.Dir(above) { // munged insists that others can reach its socket
		if err := os.Chmod(above, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	// A requeued job starts once its old credentials have expired, for which 5 s is the least.
	conf := strings.NewReplacer("HOST", host, "DIR", dir, "CTLD", fmt.Sprint(freePort(t)), "PORT0", fmt.Sprint(freePort(t)), "PORT1", fmt.Sprint(freePort(t))).Replace(`ClusterName=test
SlurmctldHost=HOST(127.0.0.1)
SlurmctldPort=CTLD
SlurmUser=root
AuthInfo=socket=DIR/munge.socket,cred_expire=5
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
StateSaveLocation=DIR/state
SlurmdSpoolDir=DIR/spool-%n
SlurmctldPidFile=DIR/slurmctld.pid
SlurmdPidFile=DIR/slurmd-%n.pid
SlurmctldLogFile=DIR/slurmctld.log
SlurmdLogFile=DIR/slurmd-%n.log
ReturnToService=2
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,batch_sched_delay=0
NodeName=n0 NodeHostname=HOST NodeAddr=127.0.0.1 Port=PORT0 CPUs=4 RealMemory=1000
NodeName=n1 NodeHostname=HOST NodeAddr=127.0.0.1 Port=PORT1 CPUs=4 RealMemory=1000
PartitionName=all Nodes=n0,n1 Default=YES MaxTime=INFINITE State=UP
`)
	for name, text := range map[string]string{"slurm.conf": conf, "munge.key": strings.Repeat("not a secret ", 10)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	env := append(os.Environ(), "SLURM_CONF="+filepath.Join(dir, "slurm.conf"), "HEADROOM_RUNS_DIR=headroom-runs")
	t.Cleanup(func() {
		for _, name := range []string{"slurmctld", "slurmd-n0", "slurmd-n1", "munged"} {
			text, _ := os.ReadFile(filepath.Join(dir, name+".pid"))
			pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
			if err != nil {
				continue
			}
			_ = syscall.Kill(pid, syscall.SIGTERM)
			for range 500 {
				if !lives(pid) {
					break
				}
				time.Sleep(10 * time.Millisecond)
			}
		}
	})
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, words := range [][]string{
		{"munged", "--force", "--key-file", at("munge.key"), "--socket", at("munge.socket"), "--pid-file", at("munged.pid"), "--log-file", at("munged.log"), "--seed-file", at("munge.seed")},
		{"slurmctld", "-i"}, {"slurmd", "-N", "n0"}, {"slurmd", "-N", "n1"},
	} {
		c := exec.Command(words[0], words[1:]...)
		c.Env = env
		if err := c.Run(); err != nil {
			t.Fatalf("%q: %v", words, err)
		}
	}
	return env
}

// TestSlurm runs the batch script of docs/nodes.md under Slurm, with two nodes: memory runs out on one, the time limit is announced to the script, and then, as without
// B:, to every process of the step. After each announcement the job is queued again, and continues.
func TestSlurm(t *testing.T) {
	script := blockWith(t, "docs/nodes.md", "\nsrun headroom run")
	env := cluster(t)
	dir := shared(t, "slow")
	from, to := strings.Index(script, "-- torchrun"), strings.Index(script, " &\n")
	script = script[:from] + "-- python3 train.py --bs 8 --accum 1 --steps 60 --fail-node 1 --fail-step 2 --fits 4" + script[to:]
	script = strings.Replace(script, "headroom run ", "headroom run --node auto --node-gone 60s --no-worker --trust --knob micro=--bs --knob accumulation=--accum --knob resume=--resume --knob 'checkpoints=out/step-*.json' ", 1)
	script = strings.Replace(script, " --gpus-per-node=8", " --output=said", 1)
	if err := os.WriteFile(filepath.Join(dir, "job.sh"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	slurm := func(words ...string) string {
		t.Helper()
		c := exec.Command(words[0], words[1:]...)
		c.Env, c.Dir = env, dir
		out, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("%q: %v\n%s", words, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	said := func() string {
		text, _ := os.ReadFile(filepath.Join(dir, "said"))
		return string(text)
	}
	job := slurm("sbatch", "--parsable", "job.sh")
	until := func(what string, ready func() bool) {
		t.Helper()
		for late := time.Now().Add(patience); !ready(); time.Sleep(20 * time.Millisecond) {
			if time.Now().After(late) {
				t.Fatalf("no %s\n%s\n%s", what, said(), slurm("scontrol", "show", "job", job))
			}
		}
	}
	training := func(starts int) { // on both nodes
		until(fmt.Sprintf("start %d", starts), func() bool { return strings.Count(said(), "training") >= 2*starts })
	}
	training(2) // the second, after memory had run out
	slurm("scancel", "--batch", "--signal=USR1", job)
	until("75", func() bool { return strings.Count(said(), "interrupted, status 75") == 2 })
	training(3)
	slurm("scancel", "--signal=USR1", job)
	until("75", func() bool { return strings.Count(said(), "interrupted, status 75") == 4 })
	if err := os.Remove(filepath.Join(dir, "slow")); err != nil {
		t.Fatal(err)
	}
	until("the end", func() bool { return strings.Contains(slurm("scontrol", "show", "job", job), "JobState=COMPLETED") })
	if got := allTrained(t, dir, 60); !strings.HasPrefix(got, "8 4 4 ") {
		t.Errorf("micro-batches %s", got)
	}
	status, err := runs.ReadStatus(filepath.Join(dir, "headroom-runs", "train-"+job))
	if err != nil || status.State != runs.StateDone || status.Plan.World != 2 || status.Plan.Effective != 16 {
		t.Errorf("%+v, %v", status, err)
	}
	if !strings.Contains(slurm("scontrol", "show", "job", job), "Restarts=2") {
		t.Error(said())
	}
}
