package main

import (
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"hash/fnv"
	"os"
	"strconv"
)

// keyHash is FNV-1a with 64 bits.
func keyHash(key []byte) uint64 {
	hash := fnv.New64a()
	hash.Write(key)
	return hash.Sum64()
}

// partitionOf is where every client, and the broker, puts records with this key.
func partitionOf(key []byte, partitionCount int32) int32 {
	return int32(keyHash(key) % uint64(partitionCount))
}

func routeCommand(arguments []string) error {
	flags := flag.NewFlagSet("route", flag.ExitOnError)
	path := flags.String("vectors", "", "the `file` with the test vectors: proto/testdata/routing.json")
	flags.Parse(arguments)
	if *path == "" {
		usage(flags, "--vectors is missing")
	}
	text, err := os.ReadFile(*path)
	if err != nil {
		return err
	}
	var file struct {
		Vectors []struct {
			Key            string
			Hash           string
			PartitionCount int32 `json:"partition_count"`
			Partition      int32
		}
	}
	if err := json.Unmarshal(text, &file); err != nil {
		return fmt.Errorf("%s: %w", *path, err)
	}
	if len(file.Vectors) == 0 {
		return fmt.Errorf("%s has no vectors", *path)
	}
	for number, vector := range file.Vectors {
		key, err := hex.DecodeString(vector.Key)
		if err != nil {
			return fmt.Errorf("vector %d: %w", number, err)
		}
		expected, err := strconv.ParseUint(vector.Hash, 16, 64)
		if err != nil {
			return fmt.Errorf("vector %d: %w", number, err)
		}
		hash, partition := keyHash(key), partitionOf(key, vector.PartitionCount)
		if hash != expected || partition != vector.Partition {
			return fmt.Errorf("vector %d: key %q of %d partitions has hash %016x and partition %d, not %s and %d",
				number, vector.Key, vector.PartitionCount, hash, partition, vector.Hash, vector.Partition)
		}
	}
	fmt.Printf("%d vectors ok\n", len(file.Vectors))
	return nil
}
