package notify

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"headroom/runs"
)

// answerMost is how much of an answer is read, in bytes, whatever the receiver sends.
const answerMost = 512

// Send sends e, once, and returns what the receiver answered, in one line. It returns at the latest a second after the end of ctx.
func (r Receiver) Send(ctx context.Context, e Event) (string, error) {
	if r.address == nil {
		return r.call(ctx, e.bounded())
	}
	said, err := r.post(ctx, e.bounded())
	hide := runs.Scrub(r.secrets()) // some servers repeat the address
	if err != nil {
		err = errors.New(hide(err.Error()))
	}
	return hide(said), err
}

// secrets returns the parts of an address that give access to it.
func (r Receiver) secrets() []string {
	all := append([]string{r.address.Path, r.address.RawQuery}, strings.Split(r.address.Path, "/")...)
	if password, has := r.address.User.Password(); has {
		all = append(all, password)
	}
	return all
}

// client sends each request over a connection of its own, follows no redirection, which could lead a
// secret elsewhere, and reads a bounded header.
var client = http.Client{
	Transport:     &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true, MaxResponseHeaderBytes: 64 << 10, ForceAttemptHTTP2: true},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

func (r Receiver) post(ctx context.Context, e Event) (string, error) {
	to, body := r.request(e)
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, to.String(), bytes.NewReader(body))
	if err != nil {
		return "", withoutAddress(err)
	}
	q.Header.Set("Content-Type", "application/json")
	q.Header.Set("User-Agent", "headroom")
	answer, err := client.Do(q)
	if err != nil {
		return "", withoutAddress(err)
	}
	defer func() { _ = answer.Body.Close() }()                     // nothing is to be done about it
	text, _ := io.ReadAll(io.LimitReader(answer.Body, answerMost)) // the status is the answer
	said := oneLine(strings.TrimSpace(answer.Status + ": " + string(text)))
	if answer.StatusCode/100 != 2 {
		return "", errors.New("it answered " + said)
	}
	return said, nil
}

// withoutAddress returns err without the address that net/http puts in front.
func withoutAddress(err error) error {
	var at *url.Error
	if errors.As(err, &at) {
		err = at.Err
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return errors.New("it did not answer in time")
	}
	return err
}

// request returns what e is as a request to r: the address, and the JSON that r understands.
func (r Receiver) request(e Event) (to *url.URL, body []byte) {
	var message any = e
	to = r.address
	switch r.form {
	case asNtfy: // its JSON goes to the root, and names the topic
		at := strings.LastIndex(strings.TrimRight(to.Path, "/"), "/")
		root := *to
		root.Path, root.RawPath = to.Path[:at+1], ""
		message = map[string]any{"topic": strings.Trim(to.Path[at:], "/"), "title": e.Title(), "message": e.Body(), "tags": tags[e.Kind], "priority": priorities[e.Kind]}
		to = &root
	case asSlack:
		escaped := strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;").Replace
		message = map[string]any{"text": "*" + escaped(e.Title()) + "*\n" + escaped(e.Body())}
	case asDiscord: // no text of a run calls everybody
		message = map[string]any{"content": "**" + e.Title() + "**\n" + e.Body(), "allowed_mentions": map[string]any{"parse": []string{}}}
	}
	body, _ = json.Marshal(message) // of strings and numbers, which have a JSON form
	return to, body
}

// The tags (emojis) and priorities of ntfy; 3 is its default.
var (
	tags       = map[Kind][]string{Finished: {"white_check_mark"}, Failed: {"x"}, Interrupted: {"pause_button"}, Survived: {"muscle"}, Leak: {"chart_with_upwards_trend"}, Spill: {"snail"}, Test: {"wave"}}
	priorities = map[Kind]int{Finished: 3, Failed: 4, Interrupted: 4, Survived: 3, Leak: 4, Spill: 3, Test: 3}
)

// drained is how long a command's descendants may hold its standard error after it has ended.
const drained = time.Second

// call runs the command with e as JSON on its standard input, which fits into a pipe, so that the command need not read
// it. Whatever is left of the command's process group when it has ended, or ctx has, is killed.
func (r Receiver) call(ctx context.Context, e Event) (string, error) {
	c := exec.CommandContext(ctx, "/bin/sh", "-c", r.command)
	c.Stdin, c.WaitDelay = bytes.NewReader(e.line()), drained
	said := &head{}
	c.Stderr = said
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	if err := c.Start(); err != nil {
		return "", fmt.Errorf("it cannot be started: %w", err)
	}
	err := c.Wait()
	_ = syscall.Kill(-c.Process.Pid, syscall.SIGKILL) // there may be nobody left
	switch text := oneLine(strings.TrimSpace(string(said.text))); {
	case ctx.Err() != nil:
		return "", errors.New("it did not end in time")
	case err != nil && !errors.Is(err, exec.ErrWaitDelay) && !errors.Is(err, syscall.EPIPE) && text != "":
		return "", fmt.Errorf("%w: %s", err, text)
	case err != nil && !errors.Is(err, exec.ErrWaitDelay) && !errors.Is(err, syscall.EPIPE):
		return "", err
	default:
		return strings.TrimSuffix("exit status 0: "+text, ": "), nil
	}
}

// head keeps the beginning of what is written, and takes the rest.
type head struct{ text []byte }

func (h *head) Write(p []byte) (int, error) {
	h.text = append(h.text, p[:min(len(p), answerMost-len(h.text))]...)
	return len(p), nil
}

// oneLine returns text with spaces in place of everything that is no graphic character.
func oneLine(text string) string {
	return strings.Join(strings.FieldsFunc(strings.ToValidUTF8(text, "\uFFFD"), func(r rune) bool { return r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 }), " ")
}
