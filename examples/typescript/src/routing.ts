import { readFile } from "node:fs/promises";

import { Failure } from "./failure.js";

const OFFSET_BASIS = 0xcbf29ce484222325n;
const PRIME = 0x100000001b3n;

/** FNV-1a with 64 bits, unsigned. */
export function hash(key: Uint8Array): bigint {
  let value = OFFSET_BASIS;
  for (const byte of key) {
    value = BigInt.asUintN(64, (value ^ BigInt(byte)) * PRIME);
  }
  return value;
}

/** Which partition a key belongs to. Brokers do the same. */
export function partitionOf(key: Uint8Array, partitionCount: number): number {
  return Number(hash(key) % BigInt(partitionCount));
}

interface Vector {
  key: string;
  hash: string;
  partition_count: number;
  partition: number;
}

/** Checks a file of vectors, which all clients share, and tells how many there are. The first wrong one is a failure. */
export async function checkVectors(file: string): Promise<number> {
  const vectors = await readVectors(file);
  for (const vector of vectors) {
    const key = Buffer.from(vector.key, "hex");
    const hashed = hash(key).toString(16).padStart(16, "0");
    const partition = partitionOf(key, vector.partition_count);
    if (hashed !== vector.hash || partition !== vector.partition) {
      const here = `hash ${hashed} and partition ${partition} here, ${vector.hash} and ${vector.partition} in the file`;
      throw Failure.permanent("WRONG_VECTOR", `key ${vector.key} over ${vector.partition_count} partitions: ${here}`);
    }
  }
  return vectors.length;
}

async function readVectors(file: string): Promise<Vector[]> {
  let document: { vectors?: Vector[] };
  try {
    document = JSON.parse(await readFile(file, "utf8")) as typeof document;
  } catch (error) {
    throw Failure.permanent("INVALID_ARGUMENT", `${file} cannot be read: ${(error as Error).message}`);
  }
  if (!document.vectors?.length) {
    throw Failure.permanent("INVALID_ARGUMENT", `${file} holds no vectors`);
  }
  return document.vectors;
}
