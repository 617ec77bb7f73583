// Agents as people run them, unmodified: each sends its own prompt and tools, is made to call a tool, and goes
// on with its result. Environment: as of ../cluster.mjs.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { mkdtemp, mkdir, rm, writeFile } from 'node:fs/promises';
import http from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';

const { STRATA_URLS = '', STRATA_MODEL: model = '' } = process.env;
if (!STRATA_URLS || !model) throw new Error('STRATA_URLS and STRATA_MODEL say what is tested');
const [url] = STRATA_URLS.split(' ');
const bin = join(import.meta.dirname, 'node_modules/.bin');

const isResult = (text) => /"tool_result"|"function_call_output"|"role":"tool"/.test(text);

// The demo model calls no tool by itself, and finds no end: this adds to requests what makes it do both, and
// keeps what went through. Answers are passed on as they come.
async function startBetween(tool) {
  const turns = [];
  const server = http.createServer(async (request, response) => {
    const parts = [];
    for await (const part of request) parts.push(part);
    let body = Buffer.concat(parts);
    const turn = { path: request.url, called: false, result: false, answer: '' };
    if (body.length > 0) {
      const json = JSON.parse(body);
      const names = (json.tools ?? []).map((each) => each.function?.name ?? each.name);
      const isAnthropic = request.url.includes('/messages');
      turn.result = isResult(body.toString());
      turn.called = names.includes(tool) && !turn.result;
      if (turn.called && isAnthropic) {
        json.tool_choice = { type: 'tool', name: tool, disable_parallel_tool_use: true };
      } else if (turn.called) {
        json.tool_choice = { type: 'function', name: tool, function: { name: tool } };
        json.parallel_tool_calls = false;
      } else {
        json[isAnthropic ? 'stop_sequences' : 'stop'] = ['.', ',', ' the ', ' and '];
      }
      body = Buffer.from(JSON.stringify(json));
    }
    turns.push(turn);
    const headers = { ...request.headers, host: new URL(url).host };
    if (body.length > 0) headers['content-length'] = body.length;
    const to = http.request(url + request.url, { method: request.method, headers }, async (from) => {
      turn.status = from.statusCode;
      response.writeHead(from.statusCode, from.headers);
      for await (const piece of from) {
        turn.answer += piece;
        response.write(piece);
      }
      response.end();
    });
    to.on('error', () => response.destroy());
    response.on('close', () => to.destroy());
    to.end(body);
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  return { turns, address: `http://127.0.0.1:${server.address().port}`, close: () => server.close() };
}

// In a home and a folder of its own; its output.
async function run(program, args, { env = {}, files = {} }) {
  const home = await mkdtemp(join(tmpdir(), 'strata-program-'));
  try {
    for (const [name, text] of Object.entries(files)) {
      await mkdir(join(home, name, '..'), { recursive: true });
      await writeFile(join(home, name), text);
    }
    const { PATH } = process.env;
    const child = spawn(join(bin, program), args, {
      cwd: home,
      env: { PATH, HOME: home, XDG_CONFIG_HOME: join(home, '.config'), ...env },
      stdio: ['ignore', 'pipe', 'pipe'],
      timeout: 120_000,
    });
    let output = '';
    for (const stream of [child.stdout, child.stderr]) stream.on('data', (data) => (output += data));
    const code = await new Promise((resolve) => child.on('close', resolve));
    return { code, output };
  } finally {
    await rm(home, { recursive: true, force: true });
  }
}

// The program's turns: the first calls the tool, a later one has its result, and all are answered.
function check({ code, output }, turns, path) {
  const said = `${output}\n${JSON.stringify(turns, null, 1)}`;
  assert.equal(code, 0, said);
  const mine = turns.filter((turn) => turn.path.startsWith(path));
  assert.ok(mine.some((turn) => turn.called), said);
  assert.ok(mine.some((turn) => turn.result), said);
  assert.ok(turns.every((turn) => turn.status === 200 || turn.path === '/'), said);
}

test('Claude Code calls a tool and goes on', { timeout: 150_000 }, async () => {
  const { turns, address, close } = await startBetween('Read');
  const env = {
    ANTHROPIC_BASE_URL: address,
    ANTHROPIC_API_KEY: 'unused',
    ANTHROPIC_MODEL: model,
    ANTHROPIC_SMALL_FAST_MODEL: model,
    CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: '1',
    DISABLE_AUTOUPDATER: '1',
  };
  const ran = await run('claude', ['-p', 'The old captain', '--max-turns', '3'], { env });
  close();
  check(ran, turns, '/v1/messages');
});

test('Codex calls a tool and goes on', { timeout: 150_000 }, async () => {
  const { turns, address, close } = await startBetween('get_goal');
  const config = [
    `model = ${JSON.stringify(model)}`,
    'model_provider = "strata"',
    '[model_providers.strata]',
    'name = "Strata"',
    `base_url = "${address}/v1"`,
    'wire_api = "responses"',
  ];
  const files = { '.codex/config.toml': config.join('\n') };
  const ran = await run('codex', ['exec', '--skip-git-repo-check', 'The old captain'], { files });
  close();
  check(ran, turns, '/v1/responses');
});

test('opencode calls a tool and goes on', { timeout: 150_000 }, async () => {
  const { turns, address, close } = await startBetween('read');
  const config = {
    model: `strata/${model}`,
    small_model: `strata/${model}`,
    autoupdate: false,
    share: 'disabled',
    provider: {
      strata: {
        npm: '@ai-sdk/openai-compatible',
        name: 'Strata',
        options: { baseURL: `${address}/v1`, apiKey: 'unused' },
        models: { [model]: { name: model, tool_call: true, limit: { context: 32768, output: 2000 } } },
      },
    },
  };
  const ran = await run('opencode', ['run', 'The old captain'], { files: { 'opencode.json': JSON.stringify(config) } });
  close();
  check(ran, turns, '/v1/chat/completions');
});
