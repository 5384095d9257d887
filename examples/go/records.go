package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
	"google.golang.org/protobuf/proto"

	cursusv1 "example.com/cursus-example/gen/cursus/v1"
)

// A few thousand compressed bytes can unpack to gigabytes.
const maxUnpackedBytes = 128 << 20

// unpack gives the records of a delivered batch.
func unpack(batch *cursusv1.RecordBatch) ([]*cursusv1.Record, error) {
	set := batch.GetRecords()
	switch codec := batch.GetCodec(); codec {
	case cursusv1.Codec_CODEC_UNSPECIFIED, cursusv1.Codec_CODEC_NONE:
	case cursusv1.Codec_CODEC_GZIP, cursusv1.Codec_CODEC_ZSTD, cursusv1.Codec_CODEC_LZ4, cursusv1.Codec_CODEC_SNAPPY:
		plain, err := decompress(codec, batch.GetCompressedRecords())
		if err != nil {
			return nil, corrupt(batch, err.Error())
		}
		set = &cursusv1.RecordSet{}
		if err := proto.Unmarshal(plain, set); err != nil {
			return nil, corrupt(batch, err.Error())
		}
	default:
		message := fmt.Sprintf("the batch at offset %d has codec %d", batch.GetBaseOffset(), codec)
		return nil, &failure{reason: "UNKNOWN_CODEC", message: message}
	}
	if found := len(set.GetRecords()); found != int(batch.GetRecordCount()) {
		return nil, corrupt(batch, fmt.Sprintf("%d records instead of %d", found, batch.GetRecordCount()))
	}
	return set.GetRecords(), nil
}

func corrupt(batch *cursusv1.RecordBatch, what string) error {
	return &failure{reason: "CORRUPT_BATCH", message: fmt.Sprintf("the batch at offset %d: %s", batch.GetBaseOffset(), what)}
}

func decompress(codec cursusv1.Codec, packed []byte) ([]byte, error) {
	var plain io.Reader
	switch source := bytes.NewReader(packed); codec {
	case cursusv1.Codec_CODEC_GZIP:
		reader, err := gzip.NewReader(source)
		if err != nil {
			return nil, err
		}
		plain = reader
	case cursusv1.Codec_CODEC_ZSTD:
		reader, err := zstd.NewReader(source, zstd.WithDecoderMaxMemory(maxUnpackedBytes))
		if err != nil {
			return nil, err
		}
		defer reader.Close()
		plain = reader
	case cursusv1.Codec_CODEC_LZ4:
		plain = lz4.NewReader(source)
	default:
		plain = snappy.NewReader(source)
	}
	unpacked, err := io.ReadAll(io.LimitReader(plain, maxUnpackedBytes+1))
	if err == nil && len(unpacked) > maxUnpackedBytes {
		err = fmt.Errorf("unpacks to more than %d bytes", maxUnpackedBytes)
	}
	return unpacked, err
}

// printer writes records as lines of JSON, up to a number of them. Several streams may share it.
type printer struct {
	mutex   sync.Mutex
	out     *bufio.Writer
	left    int // how many more to print
	endless bool
}

func newPrinter(count int) *printer {
	return &printer{out: bufio.NewWriter(os.Stdout), left: count, endless: count == 0}
}

// print writes the records of a batch from an offset on, as many as may be. It answers the offset behind the last one,
// and whether all are printed that were asked for.
func (p *printer) print(partition int32, from int64, batch *cursusv1.RecordBatch) (next int64, done bool, err error) {
	records, err := unpack(batch)
	if err != nil {
		return from, false, err
	}
	p.mutex.Lock()
	defer p.mutex.Unlock()
	for index, record := range records {
		offset := batch.GetBaseOffset() + int64(index)
		if offset < from {
			continue // a batch is delivered whole, also to a reader that begins in the middle
		}
		if !p.endless && p.left == 0 {
			break
		}
		p.write(partition, offset, record)
		p.left--
		from = offset + 1
	}
	return from, !p.endless && p.left == 0, p.out.Flush()
}

func (p *printer) write(partition int32, offset int64, record *cursusv1.Record) {
	encoder := json.NewEncoder(p.out)
	encoder.SetEscapeHTML(false)
	encoder.Encode(struct {
		Partition int32   `json:"partition"`
		Offset    int64   `json:"offset"`
		Key       *string `json:"key"`
		Value     *string `json:"value"`
	}{partition, offset, text(record.Key), text(record.Value)})
}

// text tells an absent key or value, nil, from an empty one.
func text(field []byte) *string {
	if field == nil {
		return nil
	}
	shown := strings.ToValidUTF8(string(field), "\uFFFD")
	return &shown
}

// listed shows numbers as [0,1,2], and none as []: JSON would show a nil slice as null.
func listed[Number int32 | int64](numbers []Number) string {
	if numbers == nil {
		return "[]"
	}
	shown, _ := json.Marshal(numbers)
	return string(shown)
}
