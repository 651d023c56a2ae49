package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/net/netutil"

	"headroom/cmd/headroom/ui"
	"headroom/report"
)

// webFlags returns the flags for looking at a run that is in progress.
func webFlags() []cli.Flag {
	return []cli.Flag{
		boolFlag("web", "serve the report as a live page, on this machine only"),
		&cli.StringFlag{Name: "metrics", Usage: "serve Prometheus metrics at `ADDRESS`, as in 127.0.0.1:9408"},
	}
}

// web serves the live page and the metrics of a run that is in progress, each only if the flags
// ask for it. The zero value serves nothing.
type web struct {
	page, metrics net.Listener
	given         string // the value of --metrics
	servers       []*http.Server
	live          *report.Live // nil if the page is not served
}

// openWeb begins to listen on the addresses that the flags ask for, so that an address that
// is not available is reported before anything is started. The caller closes w.
func openWeb(c *cli.Context) (w *web, err error) {
	w = &web{}
	listen := func(address string) (net.Listener, error) {
		if address == "" { // of a variable that is not set; it would be every address of this machine
			return nil, errors.New("it is empty")
		}
		return (&net.ListenConfig{}).Listen(context.Background(), "tcp", address)
	}
	if address := c.String("metrics"); isSet(c, "metrics") {
		if w.metrics, err = listen(address); err != nil {
			return nil, wrongValue("metrics", address, noAddress(err))
		}
		w.given = address
	}
	if c.Bool("web") {
		if w.page, err = listen("127.0.0.1:0"); err != nil {
			w.close()
			return nil, ui.Usagef("leave out --web; headroom report RUN --open shows the same page at any time", "--web: %v", err)
		}
	}
	return w, nil
}

// serve begins to serve the run in dir. It prints the addresses, even with --quiet: otherwise
// nobody could know them.
func (w *web) serve(u *ui.UI, dir string) {
	if w.page != nil {
		w.live = &report.Live{Token: rand.Text(), Stamp: func() string { return stampOf(dir) },
			Ask:  func() error { return askedForMemory(dir) },
			Draw: func() (*report.Report, error) { return drawn(dir, "", time.Time{}) }}
		w.start(w.page, w.live)
		u.Line(ui.Plain, fmt.Sprintf("live page: http://%s/?token=%s", w.page.Addr(), w.live.Token))
	}
	if w.metrics != nil {
		hostname, _ := os.Hostname() // without one, no name is taken for this machine's
		w.start(w.metrics, http.HandlerFunc(func(to http.ResponseWriter, q *http.Request) {
			if !admitted(q.Host, w.given, w.metrics.Addr(), hostname) {
				http.Error(to, "this is no name of this machine; to use it, give it to headroom, as in --metrics NAME:9408", http.StatusForbidden)
				return
			}
			answerMetrics(to, q, dir)
		}))
		u.Line(ui.Plain, fmt.Sprintf("metrics: http://%s/metrics", w.metrics.Addr()))
	}
}

func (w *web) start(l net.Listener, h http.Handler) {
	s := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second, WriteTimeout: time.Minute, IdleTimeout: 30 * time.Second, MaxHeaderBytes: 16 << 10,
		ErrorLog: log.New(io.Discard, "", 0)} // the terminal belongs to the command
	w.servers = append(w.servers, s)
	go func() { _ = s.Serve(netutil.LimitListener(l, connectionsMost)) }() // returns when w is closed
}

// connectionsMost is how many connections each of the two servers has at once. Others wait in the
// system, where they cost no descriptors: the command needs some for every start.
const connectionsMost = 16

// admitted reports whether a request for the metrics may have a host. It prevents DNS rebinding,
// with which a web page from elsewhere could read the metrics through a name of its own that
// resolves to this machine. An address is no such name. Neither is a name without a dot, since
// nobody can register one; nor this machine's name; nor the name that the user gave in --metrics.
// If the metrics are served on the loopback interface, only its names count, and the given one.
func admitted(host, given string, at net.Addr, hostname string) bool {
	name := nameOf(host)
	if report.OwnName(host) || name != "" && name == nameOf(given) {
		return true
	}
	if own, ok := at.(*net.TCPAddr); !ok || own.IP.IsLoopback() {
		return false
	}
	machine, _, _ := strings.Cut(strings.ToLower(hostname), ".")
	first, _, dotted := strings.Cut(name, ".")
	_, err := netip.ParseAddr(name)
	return err == nil || name != "" && (!dotted || first == machine)
}

// nameOf returns the name in a host such as "Node7.example:9408", in lower case, or the address in
// one such as "[::1]:80".
func nameOf(host string) string {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = strings.Trim(host, "[]")
	}
	return strings.ToLower(strings.TrimSuffix(name, "."))
}

// lastLook is how long the viewers of a run are given to fetch its last state.
const lastLook = time.Second

// close stops serving. Viewers of the run first get its last state, for which close waits up to
// [lastLook].
func (w *web) close() {
	if w.live != nil {
		w.live.End()
	}
	ctx, cancel := context.WithTimeout(context.Background(), lastLook)
	defer cancel()
	for _, s := range w.servers {
		if s.Shutdown(ctx) != nil { // somebody is slow to read
			_ = s.Close()
		}
	}
	for _, l := range []net.Listener{w.page, w.metrics} {
		if l != nil {
			_ = l.Close() // if it was served, it is closed already
		}
	}
}

// answerMetrics answers a request for /metrics with the metrics of the run in dir, and any other
// request with an error.
func answerMetrics(to http.ResponseWriter, q *http.Request, dir string) {
	if q.URL.Path != "/metrics" {
		http.Error(to, "the metrics are at /metrics", http.StatusNotFound)
		return
	}
	var text bytes.Buffer
	if err := report.Prometheus(&text, dir); err != nil {
		http.Error(to, err.Error(), http.StatusInternalServerError)
		return
	}
	to.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = to.Write(text.Bytes()) // the client may be gone
}

// stampOf returns a string that changes whenever any of the records of the run in dir
// changes. The run's report is drawn from these records.
func stampOf(dir string) string {
	var b strings.Builder
	for _, info := range records(dir) {
		fmt.Fprintf(&b, "%x.%x.", info.Size(), info.ModTime().UnixNano())
	}
	return b.String()
}
