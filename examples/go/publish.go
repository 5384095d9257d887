package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"os"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	cursusv1 "example.com/cursus-example/gen/cursus/v1"
)

const (
	// The broker compares a repetition with a producer's last 64 batches in a partition. What is sent again after a broken
	// connection must be among them.
	maxInFlight = 32
	// A batch is full with this many bytes, whatever its number of records.
	fullBatchBytes = 1 << 20
)

// producer is the identity that all batches of one run carry.
type producer struct {
	id    []byte
	epoch int64
}

// batcher makes numbered batches of lines.
type batcher struct {
	topic          string
	identity       producer
	partitionCount int32
	recordCount    int
	open           map[int32]*openBatch
	sequences      map[int32]int64 // by partition: records numbered so far
	keyless        int32           // where records without key go until a batch of them is full
}

type openBatch struct {
	records []*cursusv1.Record
	bytes   int
}

// batch is a request with its numbers: whenever it is sent again it is the same, byte for byte.
type batch struct {
	request *cursusv1.PublishStreamRequest
	bytes   int64
}

// publisher keeps what is not acknowledged yet, oldest first, so that a new stream can send it again.
type publisher struct {
	client     *client
	unanswered []*batch
	patience   *patience
	published  int
}

func publishCommand(arguments []string) error {
	given := connectionFlags("publish")
	topic := given.flags.String("topic", "", "the `topic`, which must exist")
	name := given.flags.String("producer-id", "", "the producer's `name`; a later run of the same name shuts this one out")
	records := given.flags.Int("batch", 500, "records in a batch")
	given.parse(arguments, "topic")
	if *records < 1 {
		usage(given.flags, "--batch must be at least 1")
	}
	client, err := given.open()
	if err != nil {
		return err
	}
	defer client.connection.Close()
	ctx := context.Background()
	described, err := call(ctx, client, client.topics.DescribeTopic, &cursusv1.DescribeTopicRequest{Name: *topic})
	if err != nil {
		return err
	}
	partitionCount := described.GetTopic().GetPartitionCount()
	identity, err := identify(ctx, client, *name, *topic, partitionCount)
	if err != nil {
		return err
	}
	batches := &batcher{
		topic:          *topic,
		identity:       identity,
		partitionCount: partitionCount,
		recordCount:    *records,
		open:           map[int32]*openBatch{},
		sequences:      map[int32]int64{},
		keyless:        mathrand.Int32N(partitionCount),
	}
	input := make(chan *batch)
	var unread error
	go func() {
		defer close(input)
		unread = batches.read(os.Stdin, input)
	}()
	publisher := &publisher{client: client, patience: newPatience(client.timeout)}
	if err := publisher.patience.retry(ctx, func() error { return publisher.session(ctx, input) }); err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "published %d records\n", publisher.published)
	return unread
}

// identify gives a run without a name an id of its own. A named one begins an epoch above all that are known: what an
// older run still sends is refused then.
func identify(ctx context.Context, c *client, name, topic string, partitionCount int32) (producer, error) {
	if name == "" {
		return producer{id: []byte(rand.Text())}, nil
	}
	identity := producer{id: []byte(name)}
	for partition := range partitionCount {
		request := &cursusv1.DescribeProducersRequest{Topic: topic, Partition: partition, ProducerIds: [][]byte{identity.id}}
		known, err := call(ctx, c, c.publishing.DescribeProducers, request)
		if err != nil {
			return identity, err
		}
		if earlier := known.GetProducers()[0]; earlier.GetKnown() {
			identity.epoch = max(identity.epoch, earlier.GetEpoch()+1)
		}
	}
	return identity, nil
}

// read makes batches of all lines. It waits where nobody takes them, so it is never far ahead.
func (b *batcher) read(lines io.Reader, full chan<- *batch) error {
	reader := bufio.NewReaderSize(lines, 1<<16)
	for {
		line, err := reader.ReadBytes('\n')
		if ended := errors.Is(err, io.EOF); err != nil && !ended {
			return err
		} else if ended && len(line) == 0 {
			break
		}
		b.add(bytes.TrimSuffix(line, []byte("\n")), full)
	}
	for partition := range b.partitionCount {
		if b.open[partition] != nil {
			full <- b.seal(partition)
		}
	}
	return nil
}

func (b *batcher) add(line []byte, full chan<- *batch) {
	// Present and empty is not absent: a key or value of no bytes is a slice that is not nil.
	record, partition := &cursusv1.Record{Value: line}, b.keyless
	if key, value, keyed := bytes.Cut(line, []byte("\t")); keyed {
		record = &cursusv1.Record{Key: key, Value: value}
		partition = partitionOf(key, b.partitionCount)
	}
	open := b.open[partition]
	if open == nil {
		open = &openBatch{}
		b.open[partition] = open
	}
	open.records = append(open.records, record)
	open.bytes += len(line)
	if len(open.records) == b.recordCount || open.bytes >= fullBatchBytes {
		full <- b.seal(partition)
		if partition == b.keyless {
			b.keyless = (b.keyless + 1) % b.partitionCount
		}
	}
}

// seal numbers the open batch of a partition. The numbers stay with it however often it is sent.
func (b *batcher) seal(partition int32) *batch {
	records := b.open[partition].records
	delete(b.open, partition)
	first := b.sequences[partition]
	b.sequences[partition] += int64(len(records))
	publish := &cursusv1.PublishRequest{
		Topic:       b.topic,
		Partition:   &partition,
		Acks:        cursusv1.Acks_ACKS_ALL,
		Producer:    &cursusv1.ProducerIdentity{Id: b.identity.id, Epoch: b.identity.epoch, FirstSequence: &first},
		RecordCount: int32(len(records)),
		Records:     &cursusv1.RecordSet{Records: records},
	}
	request := &cursusv1.PublishStreamRequest{Request: &cursusv1.PublishStreamRequest_Publish{Publish: publish}}
	return &batch{request, int64(proto.Size(request))}
}

// session publishes over one stream: first what an earlier one left unanswered, then the input. It ends without error
// when everything is acknowledged. A Send that fails says nothing: the reason is what Recv ends with.
func (p *publisher) session(ctx context.Context, input <-chan *batch) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if len(p.unanswered) == 0 {
		// Without anything to send no stream is needed, and no time passes without progress.
		batch, ok := <-input
		if !ok {
			return nil
		}
		p.unanswered = append(p.unanswered, batch)
		p.patience.advanced()
	}
	stream, err := p.client.publishing.PublishStream(ctx)
	if err != nil {
		return err
	}
	open := &cursusv1.PublishStreamOpen{ClientId: "cursus-example-go"}
	stream.Send(&cursusv1.PublishStreamRequest{Request: &cursusv1.PublishStreamRequest_Open{Open: open}})
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	window := first.GetOpened().GetWindowBytes()

	// As many as may be in flight: whoever receives never waits for whoever sends.
	answers := make(chan *cursusv1.PublishOutcome, maxInFlight)
	var ended error
	go func() {
		defer close(answers)
		for {
			response, err := stream.Recv()
			if err != nil {
				ended = err
				return
			}
			for _, outcome := range response.GetOutcomes().GetOutcomes() {
				answers <- outcome
			}
		}
	}()

	broken, inFlight := false, int64(0)
	send := func(batch *batch) {
		inFlight += batch.bytes
		broken = broken || stream.Send(batch.request) != nil
	}
	for _, batch := range p.unanswered {
		send(batch)
	}
	for input != nil || len(p.unanswered) > 0 {
		more := input
		if broken || len(p.unanswered) >= maxInFlight || (inFlight > 0 && inFlight+fullBatchBytes > window) {
			more = nil // takes nothing until something is answered
		}
		select {
		case batch, ok := <-more:
			if !ok {
				input = nil
				continue
			}
			if len(p.unanswered) == 0 {
				p.patience.advanced() // from now on an answer is awaited
			}
			p.unanswered = append(p.unanswered, batch)
			send(batch)
		case outcome, ok := <-answers:
			if !ok && len(p.unanswered) == 0 {
				p.patience.advanced() // it broke while nothing was to be done
			}
			if !ok {
				return ended
			}
			answered, err := p.settle(outcome)
			if err != nil {
				return err
			}
			inFlight -= answered.bytes
		}
	}
	return stream.CloseSend()
}

// settle takes note of the answer to the oldest batch: answers come in the order of requests.
func (p *publisher) settle(outcome *cursusv1.PublishOutcome) (*batch, error) {
	if refused := outcome.GetRefused(); refused != nil {
		// Those behind it in its partition are refused too, as a gap. If it may pass, a new stream sends all of them again.
		return nil, fromStatus(status.FromProto(refused))
	}
	if len(p.unanswered) == 0 {
		return nil, errors.New("the broker answers what was not asked")
	}
	answered := p.unanswered[0]
	for _, place := range outcome.GetPublished().GetAppended() {
		fmt.Printf("partition=%d offset=%d count=%d\n", place.GetPartition(), place.GetBaseOffset(), place.GetRecordCount())
	}
	p.published += int(answered.request.GetPublish().GetRecordCount())
	p.unanswered = p.unanswered[1:]
	p.patience.advanced()
	return answered, nil
}
