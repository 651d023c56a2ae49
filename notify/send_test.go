package notify

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

var finished = Event{Kind: Finished, Run: "night", Host: "gpu7", Time: began, Text: "done: 40 steps, loss <1 & falling, @everyone",
	Summary: []string{"How often did memory run out? Twice"}, Folder: "/w/runs/night"}

// served starts a server with h, and returns a receiver of its requests in a form.
func served(t *testing.T, f form, path string, h http.HandlerFunc) Receiver {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	r, err := Parse(string(f) + "+http" + strings.TrimPrefix(s.URL, "http") + path)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// hang reads a request and does not answer it. The server sees only then that the client is gone.
func hang(q *http.Request) {
	_, _ = io.Copy(io.Discard, q.Body)
	<-q.Context().Done()
}

func TestForms(t *testing.T) {
	const body = `done: 40 steps, loss <1 & falling, @everyone\nHow often did memory run out? Twice\ngpu7:/w/runs/night`
	escaped := strings.NewReplacer("<", "&lt;", "&", "&amp;").Replace(body)
	for _, c := range []struct {
		form     form
		path, at string
		want     string
	}{
		{form: asNtfy, path: "/nights", at: "/", want: `{"message":"` + body + `","priority":3,"tags":["white_check_mark"],"title":"night has finished","topic":"nights"}`},
		{form: asNtfy, path: "/push/nights/", at: "/push/", want: `{"message":"` + body + `","priority":3,"tags":["white_check_mark"],"title":"night has finished","topic":"nights"}`},
		{form: asSlack, path: "/hooks/KEY", at: "/hooks/KEY", want: `{"text":"*night has finished*\n` + escaped + `"}`},
		{form: asDiscord, path: "/hooks/KEY?thread_id=7", at: "/hooks/KEY?thread_id=7", want: `{"allowed_mentions":{"parse":[]},"content":"**night has finished**\n` + body + `"}`},
		{form: asJSON, path: "/KEY", at: "/KEY", want: `{"kind":"finished","run":"night","host":"gpu7","time":"2026-11-26T22:00:00Z","text":"done: 40 steps, loss <1 & falling, @everyone","summary":["How often did memory run out? Twice"],"folder":"/w/runs/night"}`},
	} {
		requests := 0
		r := served(t, c.form, c.path, func(w http.ResponseWriter, q *http.Request) {
			requests++
			var got, want any
			text, err := io.ReadAll(q.Body)
			if json.Unmarshal(text, &got) != nil || json.Unmarshal([]byte(c.want), &want) != nil || fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("%s: %v\n got %s\nwant %s", c.form, err, text, c.want)
			}
			if q.Method != http.MethodPost || q.RequestURI != c.at || q.Header.Get("Content-Type") != "application/json" {
				t.Errorf("%s: %s %s, %v", c.form, q.Method, q.RequestURI, q.Header)
			}
			w.WriteHeader(http.StatusNoContent)
		})
		if said, err := r.Send(t.Context(), finished); err != nil || said != "204 No Content:" && said != "204 No Content" || requests != 1 {
			t.Errorf("%s: %q, %v, %d requests", c.form, said, err, requests)
		}
	}
}

func TestPassword(t *testing.T) {
	r := served(t, asNtfy, "/nights", func(w http.ResponseWriter, q *http.Request) {
		if user, password, _ := q.BasicAuth(); user != "" || password != "tk_sesame" {
			t.Errorf("%q, %q", user, password)
		}
	})
	address := *r.address
	address.User = nil
	with, err := Parse("ntfy+http://:tk_sesame@" + address.Host + address.Path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := with.Send(t.Context(), finished); err != nil {
		t.Error(err)
	}
}

// TestBadReceivers has receivers that do everything but receive. None takes longer than the context, none is read without
// end, and no error has the secret.
func TestBadReceivers(t *testing.T) {
	const secret = "/hooks/SESAME-SESAME"
	elsewhere := 0
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere++ }))
	defer other.Close()
	for _, c := range []struct {
		name, says string
		limited    bool // it would never answer
		h          http.HandlerFunc
	}{
		{name: "refuses", says: "it answered 403 Forbidden: no *** [31m here", h: func(w http.ResponseWriter, q *http.Request) {
			http.Error(w, "no "+q.URL.Path+"\x1b[31m here", http.StatusForbidden)
		}},
		{name: "redirects", says: "it answered 307 Temporary Redirect", h: func(w http.ResponseWriter, q *http.Request) {
			http.Redirect(w, q, other.URL+q.URL.Path, http.StatusTemporaryRedirect)
		}},
		{name: "hangs", says: "it did not answer in time", limited: true, h: func(_ http.ResponseWriter, q *http.Request) { hang(q) }},
		{name: "floods", h: func(w http.ResponseWriter, q *http.Request) {
			for _, err := w.Write(make([]byte, 1<<16)); err == nil; _, err = w.Write(make([]byte, 1<<16)) {
			}
		}},
		{name: "breaks off", says: "EOF", h: func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }},
		{name: "has a header without end", says: "net/http: HTTP/1.x transport connection broken", h: func(w http.ResponseWriter, q *http.Request) {
			w.Header().Set("X-Long", strings.Repeat("x", 1<<20))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, end := context.WithCancel(t.Context())
			defer end()
			r := served(t, asSlack, secret, func(w http.ResponseWriter, q *http.Request) {
				if c.limited {
					end()
				}
				c.h(w, q)
			})
			said, err := r.Send(ctx, finished)
			switch text := fmt.Sprint(err); {
			case c.says == "" && err != nil, c.says != "" && (err == nil || !strings.Contains(text, c.says)):
				t.Errorf("%q, %v", said, err)
			case strings.Contains(text+said, "SESAME") || strings.Contains(text+said, "\x1b") || len(text)+len(said) > 2*answerMost:
				t.Errorf("it says %q", text+said)
			}
		})
	}
	if elsewhere > 0 {
		t.Error("a redirection was followed")
	}
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	r, _ := Parse("slack+" + gone.URL + secret)
	if _, err := r.Send(t.Context(), finished); err == nil || !strings.Contains(err.Error(), "refused") || strings.Contains(err.Error(), "SESAME") {
		t.Error(err)
	}
}

func TestCommands(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("DIR", dir)
	for _, c := range []struct {
		name, command, said, err string
	}{
		{name: "reads", command: `cat > "$DIR/read"; echo not seen; echo and this >&2`, said: "exit status 0: and this"},
		{name: "does not read", command: `exec < /dev/null; true`, said: "exit status 0"},
		{name: "fails", command: `echo no >&2; exit 3`, err: "exit status 3: no"},
		{name: "fails silently", command: `exit 3`, err: "exit status 3"},
		{name: "is not there", command: `/not/there`, err: "exit status 127: "},
		{name: "writes much", command: `head -c 100000000 /dev/zero; head -c 3000000 /dev/zero >&2`, said: "exit status 0"},
		{name: "forks", command: `sleep 1000 & echo $! > "$DIR/forked"`, said: "exit status 0"},
		{name: "is killed", command: `kill -9 $$`, err: "signal: killed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := Parse(c.command)
			if err != nil {
				t.Fatal(err)
			}
			said, err := r.Send(t.Context(), finished)
			if said != c.said || (c.err == "") != (err == nil) || c.err != "" && !strings.HasPrefix(err.Error(), c.err) {
				t.Errorf("%q, %v", said, err)
			}
		})
	}
	var got Event
	text, err := os.ReadFile(filepath.Join(dir, "read"))
	if err != nil || json.Unmarshal(text, &got) != nil || fmt.Sprint(got) != fmt.Sprint(finished) {
		t.Errorf("%s, %v", text, err)
	}
	pid, err := os.ReadFile(filepath.Join(dir, "forked"))
	if err != nil {
		t.Fatal(err)
	}
	ended(t, strings.TrimSpace(string(pid)))
}

// ended waits until a process is gone or is nothing but its exit status.
func ended(t *testing.T, pid string) {
	t.Helper()
	n, err := strconv.Atoi(pid)
	if err != nil {
		t.Fatal(err)
	}
	for syscall.Kill(n, 0) == nil {
		stat, err := os.ReadFile("/proc/" + pid + "/stat")
		if _, state, _ := strings.Cut(string(stat), ") "); err != nil || strings.HasPrefix(state, "Z") {
			return
		}
	}
}

// TestDeafCommand has a command that ignores SIGTERM, never reads, never ends and has a child.
func TestDeafCommand(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "pids")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("FIFO", fifo)
	r, err := Parse(`trap "" TERM; sleep 1000 & echo $$ $! > "$FIFO"; while :; do wait; done`)
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	pids := make(chan []string)
	go func() {
		text, _ := os.ReadFile(fifo)
		end()
		pids <- strings.Fields(string(text))
	}()
	if _, err := r.Send(ctx, finished); err == nil || err.Error() != "it did not end in time" {
		t.Error(err)
	}
	all := <-pids
	if len(all) != 2 {
		t.Fatal(all)
	}
	for _, pid := range all {
		ended(t, pid)
	}
}

// TestBounded checks that a message of any size fits a pipe, and what the services take.
func TestBounded(t *testing.T) {
	long := strings.Repeat("ä\xff", 1<<16)
	e := Event{Kind: Failed, Run: long, Host: long, Folder: long, Text: long, Time: time.Now()}
	for range 1000 {
		e.Summary = append(e.Summary, long)
	}
	e = e.bounded()
	if n := len(e.line()); n > 16<<10 {
		t.Errorf("%d bytes do not fit into every pipe", n)
	}
	for _, f := range []form{asNtfy, asSlack, asDiscord} {
		to, _ := Parse(string(f) + "://host.example/topic/x")
		_, body := to.request(e)
		var message struct{ Text, Content, Message string }
		if err := json.Unmarshal(body, &message); err != nil {
			t.Fatal(err)
		}
		if n := len([]rune(message.Text + message.Content + message.Message)); n > 2500 || f == asDiscord && n > 2000 {
			t.Errorf("%s: %d characters", f, n)
		}
	}
}
