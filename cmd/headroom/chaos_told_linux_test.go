package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// badReceiver is who is told about a round: a path of the server of [serveBadly], or a command. "" is nobody.
type badReceiver string

var badReceivers = []badReceiver{"/hangs", "/refuses", "/floods", "/breaks", "/drips", "/answers",
	"exit 3", "cat /dev/zero", "cat /dev/zero >&2", "kill -9 $$", "exec sleep 1000", `trap "" TERM; sleep 1000 & wait`, "sleep 1000 &"}

// notified is the value of --notify.
func (r round) notified() string {
	switch {
	case r.told == "":
		return nobody
	case strings.HasPrefix(string(r.told), "/"):
		return "json+" + r.receivers + string(r.told)
	}
	return string(r.told)
}

// serveBadly starts a server of receivers that do everything but what they should, and returns its address.
func serveBadly(t *testing.T) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		_, _ = io.Copy(io.Discard, q.Body)
		switch q.URL.Path {
		case "/hangs":
			<-q.Context().Done()
		case "/refuses":
			http.Error(w, strings.Repeat("no ", 1<<16), http.StatusServiceUnavailable)
		case "/floods":
			for _, err := w.Write(make([]byte, 1<<16)); err == nil; _, err = w.Write(make([]byte, 1<<16)) {
			}
		case "/breaks":
			panic(http.ErrAbortHandler)
		case "/drips": // a byte, and then never another
			_, _ = w.Write([]byte("x"))
			_ = http.NewResponseController(w).Flush()
			<-q.Context().Done()
		}
	}))
	t.Cleanup(s.Close)
	return s.URL
}
