// Drives umwelt-mcp with the official TypeScript SDK.
//
// usage: node mcp_client.mjs COMMAND [ARGUMENT...]
//
// COMMAND is the server, for example `umwelt-mcp --workspace DIR`. Prints what
// it does and what comes back; exits with 1 at the first thing that is wrong.

import { randomUUID } from 'node:crypto';

import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport, getDefaultEnvironment } from '@modelcontextprotocol/sdk/client/stdio.js';

// The SDK hands on a handful of variables only; umwelt needs these too.
const ENVIRONMENT = [
  'XDG_RUNTIME_DIR',
  'XDG_CONFIG_HOME',
  'XDG_DATA_HOME',
  'XDG_STATE_HOME',
  'DBUS_SESSION_BUS_ADDRESS',
];

function check(condition, what) {
  if (!condition) {
    throw new Error(`FAILED: ${what}`);
  }
  console.log(`  ok: ${what}`);
}

function show(result) {
  for (const line of result.content[0].text.split('\n')) {
    console.log(`  | ${line}`);
  }
}

async function shell(client, command, rest = {}, options = {}) {
  console.log(`$ ${command}`);
  const params = { name: 'shell', arguments: { command, ...rest } };
  const result = await client.callTool(params, undefined, options);
  show(result);
  return result;
}

async function commands(client) {
  let result = await shell(client, 'echo out; echo err >&2; exit 7');
  check(result.isError === false, 'a failed command is a normal result');
  check(result.structuredContent.exit_code === 7, 'its exit code is 7');
  const lines = result.structuredContent.output.trim().split('\n');
  check(lines.sort().join() === 'err,out', 'its output is there');
  result = await shell(client, 'kill -9 $$');
  check(result.structuredContent.ended === 'signaled', 'a signal is no exit code');
  result = await shell(client, 'echo before; sleep 60', { timeout_s: 1 });
  check(result.structuredContent.ended === 'timed_out', 'a timeout is neither');
}

async function progress(client) {
  const seen = [];
  const onprogress = ({ progress: value, message }) => {
    console.log(`  progress ${value}: ${message}`);
    seen.push(value);
  };
  // Longer than the client's own limit, which progress starts anew.
  const options = { onprogress, timeout: 6000, resetTimeoutOnProgress: true };
  await shell(client, 'for n in 1 2 3 4 5 6 7; do echo line $n; sleep 1; done', {}, options);
  check(seen.length >= 3, 'there is progress');
  check(seen.every((value, index) => index === 0 || value > seen[index - 1]), 'it increases');
}

// In a scratch place of the sandbox, as its shell says it.
const newFile = () => `\${TMPDIR:-/tmp}/${randomUUID()}`;
const until = (condition) => `until ${condition}; do sleep 0.1; done`;

async function cancellation(client) {
  const file = newFile();
  const abort = new AbortController();
  const call = shell(client, `echo $$ >${file}; exec sleep 300`, {}, { signal: abort.signal }).then(
    () => 'answered',
    () => 'aborted',
  );
  await shell(client, until(`[ -s ${file} ]`));
  abort.abort('enough');
  check((await call) === 'aborted', 'the call is cancelled');
  const isDead = `! kill -0 $(cat ${file}) 2>/dev/null`;
  const result = await shell(client, `${until(isDead)}; rm ${file}`, { timeout_s: 40 });
  check(result.structuredContent.ended === 'exited', 'the cancelled command is dead');
}

async function concurrency(client) {
  const file = newFile();
  const numbers = [0, 1, 2, 3, 4, 5];
  // None ends before all have begun.
  const all = until(`[ $(ls ${file}-* | wc -l) = 6 ]`);
  const call = (number) => {
    const command = `touch ${file}-${number}; ${all}; echo ${number}`;
    return client.callTool({ name: 'shell', arguments: { command } });
  };
  const results = await Promise.all(numbers.map(call));
  await shell(client, `rm ${file}-*`);
  check(
    results.every((result, number) => result.structuredContent.output === `${number}\n`),
    'six calls ran side by side',
  );
}

async function timeToLeave(client) {
  await client.callTool({ name: 'list', arguments: {} });
  const start = Date.now();
  await client.close();
  return Date.now() - start;
}

async function mistakes(client) {
  for (const params of [
    { name: 'dance', arguments: {} },
    { name: 'shell', arguments: { command: 1 } },
  ]) {
    const code = await client.callTool(params).then(
      () => undefined,
      (error) => {
        console.log(`  | ${error.message}`);
        return error.code;
      },
    );
    check(code === -32602, `${JSON.stringify(params)} is refused`);
  }
}

async function main([command, ...args]) {
  if (command === undefined) {
    throw new Error('usage: node mcp_client.mjs COMMAND [ARGUMENT...]');
  }
  const env = getDefaultEnvironment();
  for (const name of ENVIRONMENT) {
    if (process.env[name] !== undefined) {
      env[name] = process.env[name];
    }
  }
  const connect = async () => {
    const client = new Client({ name: 'typescript-sdk', version: '1' });
    await client.connect(new StdioClientTransport({ command, args, env }));
    return client;
  };
  const client = await connect();
  console.log('== connect');
  const { name, version } = client.getServerVersion();
  console.log(`  ${name} ${version}\n  | ${client.getInstructions()}`);
  check(name === 'umwelt', 'the server is umwelt');
  const { tools } = await client.listTools();
  const names = tools.map((tool) => tool.name);
  check(names.includes('shell') && names.includes('list'), 'shell and list are there');
  await client.ping();
  const result = await client.callTool({ name: 'list', arguments: {} });
  show(result);
  check(result.structuredContent.mounts.length > 0, 'list shows mounts');
  for (const part of [commands, progress, cancellation, concurrency, mistakes]) {
    console.log(`== ${part.name}`);
    await part(client);
  }
  await client.ping();
  let took = await timeToLeave(client);
  // The SDK ends a server that is still there after two seconds, which may be the machine's fault.
  for (let again = 0; again < 2 && took >= 2000; again += 1) {
    took = await timeToLeave(await connect());
  }
  check(took < 2000, 'the server has left by itself');
  console.log('all well');
}

main(process.argv.slice(2)).catch((error) => {
  console.log(error.message);
  process.exitCode = 1;
  setTimeout(() => process.exit(1), 5000).unref();
});
