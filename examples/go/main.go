// An example client of Cursus in Go: publishes, follows and shares topics over gRPC, and survives the broker's restarts.
//
// It is meant to be copied. Each command is a file of its own and needs only the ones without a command:
//
//	publish.go   batches with identity and sequences over one stream, each stored exactly once
//	follow.go    every partition of a topic, from an offset on, without gaps or repetitions
//	member.go    a member of a consumer group: assignment, commits, rebalance
//	route.go     which partition a key belongs to
//	failures.go  what the broker's errors mean, and when to try again
//	records.go   what a delivered batch holds
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	cursusv1 "example.com/cursus-example/gen/cursus/v1"
)

// Batches are delivered whole, and a broker takes them up to 64 MiB by default: far more than gRPC's own limit of 4 MiB.
const maxMessageBytes = 128 << 20

// Nobody waits longer for the answer to a call that is not a stream.
const callTimeout = 10 * time.Second

// client is one connection, which all calls and streams share.
type client struct {
	connection *grpc.ClientConn
	topics     cursusv1.TopicServiceClient
	publishing cursusv1.PublishServiceClient
	consuming  cursusv1.ConsumeServiceClient
	timeout    time.Duration
}

func main() {
	commands := map[string]func([]string) error{
		"publish": publishCommand,
		"follow":  followCommand,
		"member":  memberCommand,
		"route":   routeCommand,
	}
	if len(os.Args) < 2 || commands[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: cursus-example publish|follow|member|route --flag value …; COMMAND --help tells the flags")
		os.Exit(2)
	}
	if err := commands[os.Args[1]](os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "error:", explain(err))
		os.Exit(1)
	}
}

// connection has the flags of every command that talks to a broker.
type connection struct {
	flags                 *flag.FlagSet
	broker, ca, cert, key *string
	timeoutSeconds        *float64
}

func connectionFlags(command string) connection {
	flags := flag.NewFlagSet(command, flag.ExitOnError)
	return connection{
		flags:          flags,
		broker:         flags.String("broker", "localhost:50051", "the broker's `HOST:PORT`"),
		ca:             flags.String("tls-ca", "", "PEM `file` of the authority that signed the broker's certificate; turns TLS on"),
		cert:           flags.String("tls-cert", "", "PEM `file` of the client's certificate"),
		key:            flags.String("tls-key", "", "PEM `file` of its key"),
		timeoutSeconds: flags.Float64("timeout", 60, "how many `seconds` to go on trying without progress"),
	}
}

// parse reads the flags; the names are of those that must be given.
func (c connection) parse(arguments []string, required ...string) {
	c.flags.Parse(arguments)
	if c.flags.NArg() > 0 {
		usage(c.flags, fmt.Sprintf("unexpected argument %q", c.flags.Arg(0)))
	}
	for _, name := range required {
		if c.flags.Lookup(name).Value.String() == "" {
			usage(c.flags, "--"+name+" is missing")
		}
	}
	if (*c.cert == "") != (*c.key == "") || (*c.cert != "" && *c.ca == "") {
		usage(c.flags, "--tls-cert and --tls-key go together, and with --tls-ca")
	}
}

func usage(flags *flag.FlagSet, what string) {
	fmt.Fprintln(flags.Output(), what)
	flags.Usage()
	os.Exit(2)
}

// open prepares the connection. gRPC makes it with the first call, and again whenever it breaks.
func (c connection) open() (*client, error) {
	secured, err := c.credentials()
	if err != nil {
		return nil, err
	}
	made, err := grpc.NewClient(*c.broker,
		grpc.WithTransportCredentials(secured),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessageBytes), grpc.MaxCallSendMsgSize(maxMessageBytes)),
		// gRPC's own pauses between connections grow to two minutes; a broker is back sooner.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: firstPause, Multiplier: 2, Jitter: 0.2, MaxDelay: longestPause},
			MinConnectTimeout: 5 * time.Second,
		}),
		// Notices a broker that is gone without a word: a stream that waits for records would wait for ever.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 20 * time.Second, Timeout: 10 * time.Second}),
	)
	if err != nil {
		return nil, err
	}
	return &client{
		connection: made,
		topics:     cursusv1.NewTopicServiceClient(made),
		publishing: cursusv1.NewPublishServiceClient(made),
		consuming:  cursusv1.NewConsumeServiceClient(made),
		timeout:    time.Duration(*c.timeoutSeconds * float64(time.Second)),
	}, nil
}

func (c connection) credentials() (credentials.TransportCredentials, error) {
	if *c.ca == "" {
		return insecure.NewCredentials(), nil
	}
	pem, err := os.ReadFile(*c.ca)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}
	if !config.RootCAs.AppendCertsFromPEM(pem) {
		return nil, errors.New(*c.ca + " has no certificate in PEM form")
	}
	if *c.cert != "" {
		pair, err := tls.LoadX509KeyPair(*c.cert, *c.key)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return credentials.NewTLS(config), nil
}

// untilStopped ends with SIGINT or SIGTERM.
func untilStopped() (context.Context, context.CancelFunc) {
	return signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
}

// call makes a unary call with a deadline, again while its failure may pass. A request that changes something must be one
// that may be repeated.
func call[Request, Response any](
	ctx context.Context,
	c *client,
	method func(context.Context, Request, ...grpc.CallOption) (Response, error),
	request Request,
) (Response, error) {
	var response Response
	err := newPatience(c.timeout).retry(ctx, func() error {
		bounded, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		var err error
		response, err = method(bounded, request)
		return err
	})
	return response, err
}
