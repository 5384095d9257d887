package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	cursusv1 "example.com/cursus-example/gen/cursus/v1"
)

// Records that the broker may send ahead of what is processed. Beyond that assignments would wait behind them too.
const creditRecords = 10_000

type subscribeStream = grpc.BidiStreamingClient[cursusv1.SubscribeRequest, cursusv1.SubscribeResponse]

// member takes part in a group over one Subscribe stream after another.
type member struct {
	client   *client
	printer  *printer
	patience *patience
	topic    string
	group    string
	id       string // given by the broker; a stream that names it again keeps the partitions

	// What follows belongs to the present stream.
	stream     subscribeStream
	owned      map[int32]*position
	unanswered int // commits
	leaving    bool
}

// position is how far a partition was processed.
type position struct {
	next      int64
	committed int64 // what a commit was sent for
	epoch     int64
}

func memberCommand(arguments []string) error {
	given := connectionFlags("member")
	topic := given.flags.String("topic", "", "the `topic`")
	group := given.flags.String("group", "", "the `group` to join")
	count := given.flags.Int("count", 0, "leave after so many records; 0: when stopped")
	given.parse(arguments, "topic", "group")
	client, err := given.open()
	if err != nil {
		return err
	}
	defer client.connection.Close()
	stopped, cancel := untilStopped()
	defer cancel()
	// A group may wait for a topic that does not exist yet. Here a misspelt one is an error.
	_, err = call(stopped, client, client.topics.DescribeTopic, &cursusv1.DescribeTopicRequest{Name: *topic})
	if err != nil {
		return err
	}
	m := &member{
		client:   client,
		printer:  newPrinter(*count),
		patience: newPatience(client.timeout),
		topic:    *topic,
		group:    *group,
	}
	err = m.patience.retry(stopped, func() error {
		err := m.session(stopped)
		if err == nil {
			return nil
		}
		err = explain(err)
		var failed *failure
		if errors.As(err, &failed) && failed.reason == "MEMBER_NOT_FOUND" {
			m.id, failed.passing = "", true // the session is over; the next stream joins anew
		}
		if m.leaving {
			return fmt.Errorf("the last commit was not answered: %v", err) // not to be tried again: others have taken over
		}
		return err
	})
	if stopped.Err() != nil && !m.leaving {
		return nil // stopped while there was no stream: the session timeout does the rest
	}
	return err
}

// session is one stream from joining to leaving. It ends without error when the member has left the group.
func (m *member) session(stopped context.Context) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stream, err := m.client.consuming.Subscribe(ctx)
	if err != nil {
		return err
	}
	m.stream, m.owned, m.unanswered, m.leaving = stream, map[int32]*position{}, 0, false
	m.send(&cursusv1.SubscribeRequest{Request: &cursusv1.SubscribeRequest_Start{Start: &cursusv1.SubscribeStart{
		Group:    m.group,
		Topics:   []string{m.topic},
		MemberId: m.id,
		ClientId: "cursus-example-go",
		Grant:    &cursusv1.FlowGrant{Records: creditRecords},
	}}})
	responses := make(chan *cursusv1.SubscribeResponse)
	var ended error
	go func() {
		defer close(responses)
		for {
			response, err := stream.Recv()
			if err != nil {
				ended = err
				return
			}
			select {
			case responses <- response:
			case <-ctx.Done():
				return
			}
		}
	}()
	stop := stopped.Done()
	for {
		select {
		case <-stop:
			stop = nil
			m.leave(cancel)
		case response, ok := <-responses:
			if !ok && m.leaving && m.unanswered == 0 {
				return nil
			} else if !ok {
				return ended
			}
			if err := m.handle(response, cancel); err != nil {
				return err
			}
		}
	}
}

func (m *member) handle(response *cursusv1.SubscribeResponse, cancel context.CancelFunc) error {
	switch {
	case response.GetStarted() != nil:
		m.id = response.GetStarted().GetMemberId()
		m.patience.connected()
	case response.GetAssignment() != nil:
		m.assign(response.GetAssignment())
	case response.GetCommitted() != nil:
		m.patience.advanced()
		m.unanswered--
		if m.committed(response.GetCommitted()) && !m.leaving && m.unanswered == 0 {
			m.commit()
		}
	case response.GetBatches() != nil && !m.leaving:
		done, err := m.process(response.GetBatches())
		if err != nil {
			return err
		}
		if done {
			m.leave(cancel)
		}
	}
	return nil
}

// committed looks at the results of a commit, and tells whether all of it is kept. What is not comes with the next one,
// after the next batch; or another member owns the partition by now and begins at the last commit: nothing is lost.
func (m *member) committed(answer *cursusv1.SubscribeCommitted) bool {
	kept := true
	for _, result := range answer.GetResults() {
		if refused := result.GetError(); refused != nil {
			fmt.Fprintf(os.Stderr, "partition %d: %v\n", result.GetPartition(), fromStatus(status.FromProto(refused)))
			if place := m.owned[result.GetPartition()]; place != nil {
				place.committed = -1
			}
			kept = false
		}
	}
	return kept
}

// process prints batches, commits them, and lets the broker send as many records more.
func (m *member) process(received *cursusv1.SubscribedBatches) (done bool, err error) {
	if failed := received.GetError(); failed != nil {
		return false, fromStatus(status.FromProto(failed))
	}
	place := m.owned[received.GetPartition()]
	if place == nil {
		return false, fmt.Errorf("the broker sends partition %d, which it has not assigned", received.GetPartition())
	}
	var credit int64
	for _, batch := range received.GetBatches() {
		credit += int64(batch.GetRecordCount())
		if place.next, done, err = m.printer.print(received.GetPartition(), place.next, batch); err != nil || done {
			return done, err
		}
	}
	if m.unanswered == 0 {
		m.commit()
	}
	m.send(&cursusv1.SubscribeRequest{
		Request: &cursusv1.SubscribeRequest_Grant{Grant: &cursusv1.FlowGrant{Records: credit}},
	})
	return false, nil
}

// assign takes note of what is owned from now on. The broker hands over what was lost only after the acknowledgement,
// which does not overtake the commit before it.
func (m *member) assign(assignment *cursusv1.SubscribeAssignment) {
	if revoked := assignment.GetRevoked(); len(revoked) > 0 {
		m.commit()
		var lost []int32
		for _, one := range revoked {
			lost = append(lost, one.GetPartition())
		}
		fmt.Fprintf(os.Stderr, "revoked %s\n", listed(lost))
	}
	before := m.owned
	m.owned = map[int32]*position{}
	for _, one := range assignment.GetPartitions() {
		if had := before[one.GetPartition()]; had != nil && had.epoch == one.GetLeaderEpoch() {
			m.owned[one.GetPartition()] = had
			continue
		}
		m.owned[one.GetPartition()] = &position{one.GetStartOffset(), one.GetStartOffset(), one.GetLeaderEpoch()}
		if one.TruncatedFrom != nil {
			fmt.Fprintf(os.Stderr, "partition %d was cut: offsets %d to %d are void\n",
				one.GetPartition(), one.GetStartOffset(), one.GetTruncatedFrom())
		}
	}
	fmt.Fprintf(os.Stderr, "assigned %s\n", listed(slices.Sorted(maps.Keys(m.owned))))
	m.send(&cursusv1.SubscribeRequest{Request: &cursusv1.SubscribeRequest_AssignmentAck{
		AssignmentAck: &cursusv1.AssignmentAck{Generation: assignment.GetGeneration()},
	}})
}

// commit sends what was processed since the last one. While one is unanswered only a rebalance, or leaving, sends another:
// a broker that waits for its disk would else have more of them waiting than it reads.
func (m *member) commit() {
	commit := &cursusv1.SubscribeCommit{}
	for partition, place := range m.owned {
		if place.next > place.committed {
			place.committed = place.next
			commit.Offsets = append(commit.Offsets, &cursusv1.CommitOffset{
				Topic: m.topic, Partition: partition, NextOffset: place.next, LeaderEpoch: &place.epoch,
			})
		}
	}
	if len(commit.Offsets) > 0 {
		m.unanswered++
		m.send(&cursusv1.SubscribeRequest{Request: &cursusv1.SubscribeRequest_Commit{Commit: commit}})
	}
}

// leave commits and closes the sending side: the broker ends the stream when both are done.
func (m *member) leave(cancel context.CancelFunc) {
	m.leaving = true
	m.commit()
	m.stream.CloseSend()
	time.AfterFunc(callTimeout, cancel)
}

// send has no error: when a stream is over, Recv tells why.
func (m *member) send(request *cursusv1.SubscribeRequest) {
	m.stream.Send(request)
}
