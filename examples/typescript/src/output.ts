import { once } from "node:events";

/** Prints one line or several, and waits while whoever reads is slow. */
export async function print(lines: string): Promise<void> {
  if (!process.stdout.write(`${lines}\n`)) {
    await once(process.stdout, "drain");
  }
}

/** Waits until everything printed has left the process. */
export async function flushed(): Promise<void> {
  await new Promise((resolve) => process.stdout.write("", resolve));
}

/** A pipe that was closed at its other end is no reason for a stack trace. */
export function endWithReader(): void {
  process.stdout.on("error", () => process.exit(1));
}
