package child

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// programs must behave the same with and without the wrapper. Each is a script for sh,
// with its standard input.
var programs = map[string]struct{ script, stdin string }{
	"silent":            {`:`, ""},
	"two streams":       {`echo out; echo err >&2; echo out2`, ""},
	"no last newline":   {`printf 'no newline'; printf 'here either' >&2`, ""},
	"progress bar":      {`for i in 1 2 3 4 5 6 7 8 9; do printf '\rstep %d/9' $i; done; echo`, ""},
	"a bar on stderr":   {`for i in 1 2 3 4 5; do printf '\r%d/5 [%d:00]' $i $i >&2; echo $i; done; echo >&2`, ""},
	"colours":           {`printf '\033[31mred\033[0m\033[2K\033[1A\n'`, ""},
	"raw bytes":         {`i=0; while [ $i -lt 256 ]; do printf "\\$(printf %03o $i)"; i=$((i+1)); done`, ""},
	"a huge line":       {`head -c 10485760 /dev/zero | tr '\0' x`, ""},
	"many lines":        {`seq 200000; seq 1000 >&2`, ""},
	"closed stderr":     {`exec 2>&-; echo still; echo lost >&2; echo after`, ""},
	"closed stdout":     {`exec >&-; echo lost; echo err >&2`, ""},
	"closed stdin":      {`exec <&-; cat || echo "no stdin"`, ""},
	"stdin":             {`read a; echo "got $a"; cat`, "first\nsecond\nthird"},
	"is a terminal":     {`for fd in 0 1 2; do [ -t $fd ] && echo "$fd yes" || echo "$fd no"; done`, ""},
	"environment":       {`env | grep -v ^_= | grep -v ^HEADROOM_ | grep -v ^GORACE= | sort`, ""},
	"limits and mask":   {`ulimit -a; umask; pwd`, ""},
	"descriptors":       {`ls /proc/$$/fd`, ""},
	"ignored signals":   {`grep -E 'Sig(Blk|Ign|Cgt)' /proc/self/status`, ""},
	"arguments":         {`printf '<%s>' "$@"`, ""},
	"status 3":          {`exit 3`, ""},
	"background":        {`(echo from the background) & wait; echo done`, ""},
	"two forks":         {`(sh -c 'sleep 0.01; echo daemon' & ) | cat; echo parent`, ""},
	"dies by TERM":      {`kill -TERM $$`, ""},
	"dies by a pipe":    {`seq 100000 | head -1`, ""},
	"both in turn":      {`for i in 1 2 3; do echo $i; echo e$i >&2; done`, ""},
	"no such command":   {`exec /no/such/program`, ""},
	"foreground":        {`awk '{print $5 == $8}' /proc/$$/stat`, ""},
	"terminal settings": {`stty -a 2>&1; stty -a <&1 2>&1 | sed 's/[-]*\(extproc\|onlcr\|tab[0-9]\)//g'`, ""},
	"size":              {`stty size 2>&1; stty size <&1 2>&1; stty size <&2 2>&1`, ""},
	"the terminal":      {`echo direct >/dev/tty || echo none`, ""},
}

// TestTransparentOnPipes checks that programs behave the same with and without the wrapper
// if none of their standard files is a terminal.
func TestTransparentOnPipes(t *testing.T) {
	for name, p := range programs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out, errs [2]string
			var code [2]int
			for i, wrapped := range []bool{false, true} {
				c := launched(wrapped, "sh", "-c", p.script, "sh", "one", "two words", "")
				c.Stdin = strings.NewReader(p.stdin)
				run := onPipes(t, c)
				code[i], out[i], errs[i] = run.status(), run.out.String(), run.err.String()
			}
			sameText(t, "status", fmt.Sprint(code[0]), fmt.Sprint(code[1]))
			sameText(t, "stdout", out[0], out[1])
			sameText(t, "stderr", errs[0], errs[1])
		})
	}
}

// TestTransparentOnTerminal checks that programs behave the same with and without the
// wrapper on a terminal, and leave the terminal in the same modes.
func TestTransparentOnTerminal(t *testing.T) {
	for name, p := range programs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out [2]string
			var code [2]int
			for i, wrapped := range []bool{false, true} {
				run := onTerminal(t, launched(wrapped, "sh", "-c", p.script+"\necho status $?; stty -g", "sh", "one", "two words", ""))
				run.key(p.stdin + "\n\x04\x04")
				code[i], out[i] = run.status(), run.out.String()
			}
			sameText(t, "status", fmt.Sprint(code[0]), fmt.Sprint(code[1]))
			sameText(t, "terminal", out[0], out[1])
		})
	}
}

func sameText(t *testing.T, what, plain, wrapped string) {
	t.Helper()
	if plain == wrapped {
		return
	}
	at := 0
	for at < min(len(plain), len(wrapped)) && plain[at] == wrapped[at] {
		at++
	}
	from := max(0, at-40)
	t.Errorf("%s differs at byte %d of %d and %d:\n%.200q\n%.200q", what, at, len(plain), len(wrapped), plain[from:], wrapped[from:])
}

// TestEveryStatus checks that each of the 256 exit statuses is reported as it is, and an end
// by signal n as status 128 + n.
func TestEveryStatus(t *testing.T) {
	for code := range 256 {
		exit, _ := lived(t, Options{Bare: code%2 == 0}, "sh", "-c", fmt.Sprintf("exit %d", code))
		if exit.Code != code || exit.Signal != 0 || exit.Stopped || exit.Seconds <= 0 {
			t.Fatalf("exit %d: %+v", code, exit)
		}
	}
	for s := syscall.Signal(1); s <= 64; s++ {
		if harmless[s] {
			continue
		}
		exit, _ := lived(t, Options{}, "sh", "-c", fmt.Sprintf("ulimit -c 0; kill -%d $$", int(s)))
		if exit.Code != 128+int(s) || exit.Signal != s || exit.Stopped {
			t.Fatalf("%v: %+v", s, exit)
		}
	}
}

// harmless lists the signals that do not end a process by default, and the two that glibc
// reserves for itself, which no shell can send.
var harmless = map[syscall.Signal]bool{
	syscall.SIGCHLD: true, syscall.SIGURG: true, syscall.SIGWINCH: true, syscall.SIGCONT: true, 32: true, 33: true,
	syscall.SIGSTOP: true, syscall.SIGTSTP: true, syscall.SIGTTIN: true, syscall.SIGTTOU: true,
}

// TestEveryEndOnATerminal is TestEveryStatus with fewer statuses and on a pseudo-terminal.
// It checks that each status is the same with and without the wrapper.
func TestEveryEndOnATerminal(t *testing.T) {
	ends := map[string]int{"exit 0": 0, "exit 1": 1, "exit 2": 2, "exit 120": 120, "exit 126": 126, "exit 127": 127, "exit 128": 128, "exit 137": 137, "exit 255": 255}
	for s := syscall.Signal(1); s < 32; s++ {
		if !harmless[s] {
			ends[fmt.Sprintf("ulimit -c 0; kill -%d $$", int(s))] = 128 + int(s)
		}
	}
	for script, want := range ends {
		t.Run(script, func(t *testing.T) {
			t.Parallel()
			for _, wrapped := range []bool{false, true} {
				if got := onTerminal(t, launched(wrapped, "sh", "-c", script)).status(); got != want {
					t.Errorf("wrapped: %v: status %d, want %d", wrapped, got, want)
				}
			}
		})
	}
}

// TestOneStreamKeepsItsOrder checks that output keeps its order if both streams go to one
// file, as with 2>&1.
func TestOneStreamKeepsItsOrder(t *testing.T) {
	var want strings.Builder
	for i := range 300 {
		fmt.Fprintf(&want, "%d\ne%d\n", i, i)
	}
	exit, got := lived(t, Options{}, "sh", "-c", `i=0; while [ $i -lt 300 ]; do echo $i; echo e$i >&2; i=$((i+1)); done`)
	if got != want.String() || string(exit.Tail) != got {
		t.Errorf("the order is not kept: %.100q, tail %.100q", got, exit.Tail)
	}
}

// TestLogAndTail checks that the log and the tail both get the output of both streams.
func TestLogAndTail(t *testing.T) {
	var log bytes.Buffer
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	errs, err := os.Create(filepath.Join(t.TempDir(), "err"))
	if err != nil {
		t.Fatal(err)
	}
	exit, _ := lived(t, Options{Log: &log, TailBytes: 1000, Stdout: null, Stderr: errs},
		"sh", "-c", `seq 1 5000; echo failed >&2`)
	if got := log.Len(); got != 23893+len("failed\n") || !strings.Contains(log.String(), "failed\n") {
		t.Errorf("%d bytes logged", got)
	}
	text, _ := os.ReadFile(errs.Name())
	if string(text) != "failed\n" {
		t.Errorf("stderr is %q", text)
	}
	lines := strings.Split(strings.TrimSuffix(string(exit.Tail), "\n"), "\n")
	if len(exit.Tail) > 1000 || len(exit.Tail) < 990 || len(lines[0]) != 4 || !strings.Contains(string(exit.Tail), "5000\n") {
		t.Errorf("the tail: %d bytes, %q", len(exit.Tail), exit.Tail)
	}
}

// TestBare checks that with Bare the child gets the caller's files themselves, and that no
// tail is kept.
func TestBare(t *testing.T) {
	exit, got := lived(t, Options{Bare: true}, "sh", "-c", `readlink /proc/$$/fd/1; readlink /proc/$$/fd/2`)
	if lines := strings.Split(got, "\n"); len(lines) != 3 || lines[0] != lines[1] || !strings.HasSuffix(lines[0], "/out") || len(exit.Tail) != 0 {
		t.Errorf("%q, tail %q", got, exit.Tail)
	}
}
