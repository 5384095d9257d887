import { Failure } from "./failure.js";

const NEWLINE = 0x0a;

/** Lines of bytes, which need not be text, without their ends and of a bounded length. */
export async function* linesOf(input: AsyncIterable<Buffer>, maxBytes: number): AsyncGenerator<Buffer> {
  let parts: Buffer[] = [];
  let size = 0;
  for await (const chunk of input) {
    let at = 0;
    for (let end = chunk.indexOf(NEWLINE); end >= 0; end = chunk.indexOf(NEWLINE, at)) {
      yield Buffer.concat([...parts, chunk.subarray(at, end)]);
      parts = [];
      size = 0;
      at = end + 1;
    }
    if (at < chunk.length) {
      parts.push(chunk.subarray(at));
      size += chunk.length - at;
    }
    if (size > maxBytes) {
      throw Failure.permanent("RECORD_TOO_LARGE", `a line has more than the ${maxBytes} bytes that the broker takes`);
    }
  }
  if (size > 0) {
    yield Buffer.concat(parts);
  }
}
