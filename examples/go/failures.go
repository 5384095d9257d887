package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	firstPause   = 50 * time.Millisecond
	longestPause = 2 * time.Second
)

// What passes by itself, besides all that is UNAVAILABLE. The table of all reasons is in docs/clients.md.
var passingReasons = map[string]bool{
	"WRITE_TIMEOUT": true,
	"DISK_FULL":     true,
	"NOT_LEADER":    true,
	"INTERNAL":      true,
}

// Without a reason the status tells what the connection met.
var passingCodes = map[codes.Code]bool{
	codes.Unavailable:      true,
	codes.DeadlineExceeded: true,
	codes.Canceled:         true,
	codes.Internal:         true,
	codes.Unknown:          true,
}

// failure is an error as a program reads it: by its reason.
type failure struct {
	reason   string
	message  string
	metadata map[string]string
	passing  bool
	pause    time.Duration // how long the broker asks to wait; 0 if it does not say
}

func (f *failure) Error() string {
	return fmt.Sprintf("%s: %s", f.reason, f.message)
}

// explain finds the reason of an error of gRPC. Errors of another kind are told as they are.
func explain(err error) error {
	var known *failure
	if errors.As(err, &known) {
		return known
	}
	if errors.Is(err, io.EOF) {
		return &failure{reason: "UNAVAILABLE", message: "the broker ended the stream", passing: true}
	}
	if told, ok := status.FromError(err); ok {
		return fromStatus(told)
	}
	return err
}

// fromStatus reads the status of a call, or one that the broker answers inside a stream.
func fromStatus(told *status.Status) *failure {
	found := &failure{
		reason:  code.Code(told.Code()).String(),
		message: told.Message(),
		passing: passingCodes[told.Code()],
	}
	for _, detail := range told.Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok && info.GetDomain() == "cursus" {
			found.reason, found.metadata = info.GetReason(), info.GetMetadata()
			found.passing = told.Code() == codes.Unavailable || passingReasons[info.GetReason()]
		}
	}
	for _, detail := range told.Details() {
		if retry, ok := detail.(*errdetails.RetryInfo); ok {
			found.passing, found.pause = true, retry.GetRetryDelay().AsDuration()
		}
	}
	return found
}

// patience tries again until nothing has come forward for its timeout.
type patience struct {
	timeout  time.Duration
	pause    time.Duration
	progress time.Time
}

func newPatience(timeout time.Duration) *patience {
	return &patience{timeout: timeout, pause: firstPause, progress: time.Now()}
}

// advanced notes that something has come forward: the time and the pauses begin anew.
func (p *patience) advanced() {
	p.progress, p.pause = time.Now(), firstPause
}

// connected notes that a stream stands: the time begins anew. The pauses do not, lest one that stands and fails at once is
// opened without pause.
func (p *patience) connected() {
	p.progress = time.Now()
}

// retry makes attempts until one succeeds or fails for good, time is up, or the context ends.
func (p *patience) retry(ctx context.Context, attempt func() error) error {
	for {
		err := attempt()
		if err == nil || ctx.Err() != nil {
			return err
		}
		var failed *failure
		if err = explain(err); !errors.As(err, &failed) || !failed.passing || time.Since(p.progress) > p.timeout {
			return err
		}
		// Clients that lost the same broker at the same time do not come back at the same time.
		pause := max(failed.pause, p.pause/2+rand.N(p.pause/2))
		p.pause = min(2*p.pause, longestPause)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return err
		}
	}
}
