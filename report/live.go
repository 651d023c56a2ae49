package report

import (
	"bytes"
	"crypto/rand"
	"crypto/subtle"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

// Live is an [http.Handler] that serves a run's report while the run is in progress. It
// is the usual page, which also fetches itself again whenever it has changed. A Live is
// safe for concurrent use. It draws nothing unless somebody looks.
type Live struct {
	// Draw draws the report from what is on disk now.
	Draw func() (*Report, error)
	// Stamp returns a string that changes whenever the report would come out differently
	// if it were drawn again.
	Stamp func() string
	// Ask asks the run for an account of its memory, which changes the page once it is there. nil if
	// the run cannot be asked.
	Ask func() error
	// Token is the value that the token parameter of a request's address must have.
	Token string

	once  sync.Once
	ended chan struct{}

	mu    sync.Mutex
	stamp string
	drawn time.Time
	page  []byte
	nonce string
}

// liveWait is how long a request may wait for a change of the page, if the request asks
// for that (Prefer: wait, RFC 7240). liveLook is how often the server then checks for a
// change.
const (
	liveWait = 20 * time.Second
	liveLook = 250 * time.Millisecond
)

// End says that the run has ended. Waiting requests are answered at once, with the run's
// last state. End must be called only once.
func (l *Live) End() { close(l.end()) }

func (l *Live) end() chan struct{} {
	l.once.Do(func() { l.ended = make(chan struct{}) })
	return l.ended
}

// wait returns when the page may differ from the one with the given tag, when the run or
// the request has ended, or after liveWait.
func (l *Live) wait(q *http.Request, tag string) {
	look, over := time.NewTicker(liveLook), time.NewTimer(liveWait)
	defer look.Stop()
	defer over.Stop()
	for {
		if _, now, err := l.now(false); err != nil || now != tag {
			return
		}
		select {
		case <-l.end():
			return
		case <-q.Context().Done():
			return
		case <-over.C:
			return
		case <-look.C:
		}
	}
}

// liveEvery is how old a page must be before it is drawn again.
const liveEvery = time.Second

// ServeHTTP serves only requests for /, and for /account to ask for an account of memory, that carry the token and that address this machine
// by a loopback name or address. The check of the host prevents DNS rebinding, with which
// a page from elsewhere could read this one through a host name that resolves to this
// machine.
func (l *Live) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	h := w.Header()
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Security-Policy", "frame-ancestors 'none'")
	switch {
	case q.Method == http.MethodPost && q.URL.Path == "/account" && l.Ask != nil && l.allows(q):
		l.answer(w)
		return
	case q.Method != http.MethodGet && q.Method != http.MethodHead:
		h.Set("Allow", "GET, HEAD")
		http.Error(w, "this page is read-only", http.StatusMethodNotAllowed)
		return
	case !OwnName(q.Host):
		http.Error(w, "open this page at 127.0.0.1 or localhost", http.StatusForbidden)
		return
	case !l.allows(q):
		http.Error(w, "this page needs its token: open the full address that headroom printed", http.StatusForbidden)
		return
	case q.URL.Path != "/":
		http.Error(w, "the only page here is /", http.StatusNotFound)
		return
	}
	if known := q.Header.Get("If-None-Match"); known != "" && q.Header.Get("Prefer") == "wait" {
		l.wait(q, known)
	}
	over := false
	select {
	case <-l.end():
		over = true
	default:
	}
	page, tag, err := l.now(over)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	h.Set("ETag", tag)
	if q.Header.Get("If-None-Match") == tag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	h.Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write(page) // the client may be gone
}

// allows reports whether a request addresses this machine and carries the token.
func (l *Live) allows(q *http.Request) bool {
	return OwnName(q.Host) && subtle.ConstantTimeCompare([]byte(q.URL.Query().Get("token")), []byte(l.Token)) == 1
}

// answer asks the run for an account, and answers whether that was possible.
func (l *Live) answer(w http.ResponseWriter) {
	if err := l.Ask(); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// now returns the page and its tag. It draws the page again if the run has progressed and
// the previous page is old enough. If last is true, the age does not matter.
func (l *Live) now(last bool) (page []byte, tag string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.nonce == "" {
		l.nonce = rand.Text()
	}
	if stamp := l.Stamp(); l.page == nil || stamp != l.stamp && (last || time.Since(l.drawn) >= liveEvery) {
		r, err := l.Draw()
		if err != nil {
			return nil, "", err
		}
		var text bytes.Buffer
		if err := r.html(&text, l.nonce, l.Ask != nil); err != nil {
			return nil, "", err
		}
		l.page, l.stamp, l.drawn = text.Bytes(), stamp, time.Now()
	}
	return l.page, fmt.Sprintf("%q", l.nonce[:8]+"-"+l.stamp), nil
}

// OwnName reports whether the host of a request names the loopback interface, as in "localhost:80".
func OwnName(host string) bool {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = host
	}
	at, err := netip.ParseAddr(name)
	return name == "localhost" || err == nil && at.IsLoopback()
}
