package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"

	cursusv1 "example.com/cursus-example/gen/cursus/v1"
)

// reader is how far one partition was read, and in which epoch of its log.
type reader struct {
	client    *client
	printer   *printer
	topic     string
	partition int32
	next      int64
	epoch     int64
}

// errDone ends a stream of which nothing more is wanted.
var errDone = errors.New("done")

func followCommand(arguments []string) error {
	given := connectionFlags("follow")
	topic := given.flags.String("topic", "", "the `topic`")
	from := given.flags.String("from", "earliest", "where to begin: `earliest or latest`")
	count := given.flags.Int("count", 0, "end after so many records; 0: when stopped")
	given.parse(arguments, "topic")
	edges := map[string]cursusv1.OffsetEdge{
		"earliest": cursusv1.OffsetEdge_OFFSET_EDGE_EARLIEST,
		"latest":   cursusv1.OffsetEdge_OFFSET_EDGE_LATEST,
	}
	edge, known := edges[*from]
	if !known || *count < 0 {
		usage(given.flags, "--from is earliest or latest, and --count is not negative")
	}
	client, err := given.open()
	if err != nil {
		return err
	}
	defer client.connection.Close()
	ctx, cancel := untilStopped()
	defer cancel()

	// Asked for once: a stream that breaks before its first record then begins again at the same offset.
	found, err := call(ctx, client, client.topics.ListOffsets, &cursusv1.ListOffsetsRequest{
		Topic: *topic,
		At:    &cursusv1.OffsetSpec{Spec: &cursusv1.OffsetSpec_Edge{Edge: edge}},
	})
	if err != nil {
		return err
	}
	var starts []int64
	for _, place := range found.GetOffsets() {
		starts = append(starts, place.GetOffset())
	}
	fmt.Fprintf(os.Stderr, "following %s from %s\n", *topic, listed(starts))

	printer := newPrinter(*count)
	failures := make(chan error, len(starts))
	var readers sync.WaitGroup
	for _, place := range found.GetOffsets() {
		one := &reader{client, printer, *topic, place.GetPartition(), place.GetOffset(), place.GetLeaderEpoch()}
		readers.Go(func() {
			if err := one.run(ctx); err != nil && ctx.Err() == nil {
				failures <- err
			}
			cancel() // the first one that ends, ends them all
		})
	}
	readers.Wait()
	select {
	case err := <-failures:
		return err
	default:
		return nil
	}
}

// run reads on over one stream after another. It ends without error when nothing more is wanted.
func (r *reader) run(ctx context.Context) error {
	patience := newPatience(r.client.timeout)
	err := patience.retry(ctx, func() error {
		err := explain(r.stream(ctx, patience))
		var failed *failure
		for errors.As(err, &failed) && failed.reason == "LOG_TRUNCATED" {
			if err := r.goBack(failed); err != nil {
				return err
			}
			err = explain(r.stream(ctx, patience))
		}
		return err
	})
	if errors.Is(err, errDone) {
		return nil
	}
	return err
}

func (r *reader) stream(ctx context.Context, patience *patience) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := r.client.consuming.Consume(ctx)
	if err != nil {
		return err
	}
	start := &cursusv1.ConsumeStart{
		Topic:     r.topic,
		Partition: r.partition,
		StartAt:   &cursusv1.OffsetSpec{Spec: &cursusv1.OffsetSpec_Offset{Offset: r.next}},
		// If the log was cut below what was read, the broker says so instead of going on with other records.
		LeaderEpoch: &r.epoch,
	}
	// Nothing more to say: without credit the transport's flow control alone holds the broker back.
	stream.Send(&cursusv1.ConsumeRequest{Request: &cursusv1.ConsumeRequest_Start{Start: start}})
	stream.CloseSend()
	for {
		response, err := stream.Recv()
		if err != nil {
			return err
		}
		if started := response.GetStarted(); started != nil {
			r.epoch = started.GetLeaderEpoch()
			patience.connected()
			continue
		}
		patience.advanced()
		for _, batch := range response.GetBatches().GetBatches() {
			next, done, err := r.printer.print(r.partition, r.next, batch)
			if err != nil {
				return err
			}
			if r.next = next; done {
				return errDone
			}
		}
	}
}

// goBack goes on where power loss, or damage, has cut the log: what was read behind that is gone.
func (r *reader) goBack(truncated *failure) error {
	offset, err := strconv.ParseInt(truncated.metadata["offset"], 10, 64)
	if err != nil {
		return truncated
	}
	epoch, err := strconv.ParseInt(truncated.metadata["leader_epoch"], 10, 64)
	if err != nil {
		return truncated
	}
	fmt.Fprintf(os.Stderr, "partition %d was cut: offsets %d to %d are void\n", r.partition, offset, r.next)
	r.next, r.epoch = offset, epoch
	return nil
}
