// Perfetto's trace processor outside of a browser: node trace_processor.cjs FOLDER, where FOLDER has engine_bundle.js and
// the .wasm files of Perfetto's page. Requests come on stdin, each after its length (4 bytes); answers go to stdout.
const fs = require('fs'), path = require('path'), vm = require('vm');
const folder = process.argv[2];
const load = (url) => fs.readFileSync(path.join(folder, path.basename(String(url))));
const say = console.error;

class XMLHttpRequest { // emscripten loads its module with it
  open(method, url) { this.url = url; }
  send() {
    const found = load(this.url);
    this.status = 200;
    this.response = found.buffer.slice(found.byteOffset, found.byteOffset + found.length);
  }
}

const location = { href: 'http://localhost/engine_bundle.js', origin: 'http://localhost' };
const worker = { location };
const world = {
  self: worker, location, XMLHttpRequest, URL, TextDecoder, TextEncoder, setTimeout, clearTimeout, performance,
  console: { log: say, warn: say, error: say }, importScripts: () => {}, WorkerGlobalScope: class {},
  crypto: require('crypto').webcrypto, Response,
  fetch: async (url) => new Response(load(url), { headers: { 'Content-Type': 'application/wasm' } }),
};
vm.createContext(world);
vm.runInContext(load('engine_bundle.js').toString(), world);
const Bytes = vm.runInContext('Uint8Array', world);
const port = { postMessage: (answer) => fs.writeSync(1, Buffer.from(answer)), onmessage: null };
worker.onmessage({ data: port });

let pending = Buffer.alloc(0);
function hear(data) {
  pending = Buffer.concat([pending, data]);
  while (pending.length >= 4 && pending.length >= 4 + pending.readUInt32LE(0)) {
    const end = 4 + pending.readUInt32LE(0);
    port.onmessage({ data: new Bytes(pending.subarray(4, end)) });
    pending = pending.subarray(end);
  }
}
// The module is ready some turns of the event loop later; requests wait in the pipe.
setTimeout(() => process.stdin.on('data', hear), 1000);
process.stdin.on('end', () => process.exit(0));
