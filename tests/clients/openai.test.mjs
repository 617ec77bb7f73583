// Strata through the client library `openai`, as it comes from the registry.
import assert from 'node:assert/strict';
import net from 'node:net';
import { test } from 'node:test';
import zlib from 'node:zlib';
import OpenAI from 'openai';
import { clientOf, eventually, metric, model, nobodyRuns, urls } from './cluster.mjs';

const ask = (more = {}) => ({
  model,
  prompt: 'The old captain',
  max_tokens: 24,
  temperature: 0.4,
  seed: 7,
  ...more,
});
const chat = (more = {}) => ({
  model,
  messages: [{ role: 'user', content: 'The old captain' }],
  max_tokens: 24,
  temperature: 0.4,
  seed: 7,
  ...more,
});
// A text that goes on until it is ended.
const endless = { max_tokens: 1900, ignore_eos: true };

async function collect(stream) {
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  return chunks;
}
const textOf = (chunks) =>
  chunks.map((c) => c.choices[0]?.text ?? c.choices[0]?.delta.content ?? '').join('');
const finishOf = (chunks) => chunks.map((c) => c.choices[0]?.finish_reason).find((f) => f);

for (const [at, url] of urls.entries()) {
  const client = clientOf(url);
  const name = (what) => `node ${at}: ${what}`;

  test(name('lists its models'), async () => {
    const models = [];
    for await (const each of client.models.list()) models.push(each);
    assert.deepEqual(models.map((each) => [each.id, each.object]), [[model, 'model']]);
    assert.equal((await client.models.retrieve(model)).id, model);
  });

  test(name('completes a text, and the same one for the same seed'), async () => {
    const first = await client.completions.create(ask());
    assert.equal(first.object, 'text_completion');
    assert.equal(first.choices[0].finish_reason, 'length');
    assert.equal(first.usage.completion_tokens, 24);
    assert.equal(first.usage.total_tokens, 24 + first.usage.prompt_tokens);
    assert.ok(first.choices[0].text.length > 24);
    const again = await client.completions.create(ask());
    assert.equal(again.choices[0].text, first.choices[0].text);
    const other = await client.completions.create(ask({ seed: 8 }));
    assert.notEqual(other.choices[0].text, first.choices[0].text);
  });

  test(name('takes a body that the client compresses'), async () => {
    const plain = await client.completions.create(ask({ max_tokens: 4 }));
    const body = JSON.stringify(ask({ max_tokens: 4 }));
    const coders = { gzip: zlib.gzipSync, deflate: zlib.deflateSync, zstd: zlib.zstdCompressSync };
    for (const [coding, code] of Object.entries(coders)) {
      if (!code) continue; // Node 22.15 has the last one
      const headers = { 'content-type': 'application/json', 'content-encoding': coding };
      const reply = await fetch(`${url}/v1/completions`, { method: 'POST', headers, body: code(body) });
      assert.equal(reply.status, 200, coding);
      assert.equal((await reply.json()).choices[0].text, plain.choices[0].text);
    }
  });

  test(name('streams what it would answer whole, and the usage'), async () => {
    const whole = await client.completions.create(ask());
    const options = { stream: true, stream_options: { include_usage: true } };
    const chunks = await collect(await client.completions.create(ask(options)));
    assert.ok(chunks.length > 10);
    assert.equal(textOf(chunks), whole.choices[0].text);
    assert.equal(finishOf(chunks), 'length');
    assert.deepEqual(chunks.at(-1).choices, []);
    const { prompt_tokens, completion_tokens, total_tokens } = whole.usage;
    const { usage } = chunks.at(-1);
    assert.deepEqual(
      [usage.prompt_tokens, usage.completion_tokens, usage.total_tokens],
      [prompt_tokens, completion_tokens, total_tokens],
    );
    assert.ok(chunks.slice(0, -1).every((chunk) => chunk.usage === null));
  });

  test(name('answers a chat, whole and streamed'), async () => {
    const whole = await client.chat.completions.create(chat());
    assert.equal(whole.object, 'chat.completion');
    assert.equal(whole.choices[0].message.role, 'assistant');
    assert.equal(whole.usage.completion_tokens, 24);
    const chunks = await collect(await client.chat.completions.create(chat({ stream: true })));
    assert.equal(chunks[0].choices[0].delta.role, 'assistant');
    assert.equal(textOf(chunks), whole.choices[0].message.content);
    // The client's own reading of a stream, which checks every chunk.
    const final = await client.chat.completions.stream(chat()).finalChatCompletion();
    assert.equal(final.choices[0].message.content, whole.choices[0].message.content);
  });

  test(name('takes all kinds of messages'), async () => {
    const answer = await client.chat.completions.create(
      chat({
        messages: [
          { role: 'developer', content: 'Tell stories.' },
          { role: 'user', content: [{ type: 'text', text: 'The old ' }, { type: 'text', text: 'captain' }] },
          { role: 'assistant', content: 'sailed.' },
          { role: 'user', content: 'And then?', name: 'kim' },
        ],
        max_tokens: undefined,
        max_completion_tokens: 4,
      }),
    );
    assert.equal(answer.usage.completion_tokens, 4);
  });

  test(name('ends at a stop string, and frees its place'), { timeout: 60_000 }, async () => {
    const { choices } = await client.completions.create(ask({ max_tokens: 64 }));
    const stop = choices[0].text.slice(20, 27);
    const expected = choices[0].text.slice(0, choices[0].text.indexOf(stop));
    const whole = await client.completions.create(ask({ ...endless, stop: [stop, '\u0001'] }));
    assert.equal(whole.choices[0].text, expected);
    assert.equal(whole.choices[0].finish_reason, 'stop');
    assert.ok(whole.usage.completion_tokens < 64);
    const before = await metric('strata_requests_cancelled_total');
    const chunks = await collect(await client.completions.create(ask({ ...endless, stop, stream: true })));
    assert.equal(textOf(chunks), expected);
    assert.equal(finishOf(chunks), 'stop');
    await eventually(nobodyRuns);
    assert.equal(await metric('strata_requests_cancelled_total'), before); // complete, not cancelled
  });

  test(name('says how likely its tokens were'), async () => {
    const { choices } = await client.completions.create(ask({ logprobs: 2, max_tokens: 6 }));
    const { tokens, token_logprobs, top_logprobs, text_offset } = choices[0].logprobs;
    assert.equal(tokens.join(''), choices[0].text);
    assert.deepEqual([token_logprobs.length, top_logprobs.length, text_offset.length], [6, 6, 6]);
    assert.ok(token_logprobs.every((logprob) => logprob <= 0));
    const answer = await client.chat.completions.create(
      chat({ logprobs: true, top_logprobs: 3, max_tokens: 6, temperature: 0 }),
    );
    const { content } = answer.choices[0].logprobs;
    assert.equal(content.length, 6);
    assert.equal(content.map((each) => each.token).join(''), answer.choices[0].message.content);
    for (const { token, logprob, bytes, top_logprobs: top } of content) {
      assert.equal(Buffer.from(bytes).toString(), token);
      assert.equal(top.length, 3);
      assert.equal(top[0].token, token); // without chance the likeliest is taken
      assert.ok(logprob <= 0 && top[0].logprob >= top[1].logprob);
    }
  });

  test(name('writes several texts for one prompt'), async () => {
    const { choices } = await client.chat.completions.create(chat({ n: 3 }));
    assert.deepEqual(choices.map((choice) => choice.index), [0, 1, 2]);
    assert.equal(new Set(choices.map((choice) => choice.message.content)).size, 3);
    const streamed = ['', '', ''];
    for await (const chunk of await client.chat.completions.create(chat({ n: 3, stream: true }))) {
      for (const { index, delta } of chunk.choices) streamed[index] += delta.content ?? '';
    }
    assert.equal(new Set(streamed).size, 3);
    assert.ok(streamed.every((text) => text.length > 24));
  });

  test(name('heeds logit_bias'), async () => {
    // The demo's vocabulary is small: token 300 stands for a piece of a word.
    const biased = await client.completions.create(ask({ logit_bias: { 300: 100 }, max_tokens: 4 }));
    const { choices } = await client.completions.create(
      ask({ logit_bias: { 300: 100 }, max_tokens: 1, logprobs: 0 }),
    );
    assert.equal(biased.choices[0].text, choices[0].logprobs.tokens[0].repeat(4));
  });

  test(name('says what is wrong in words that the client understands'), async () => {
    const fails = async (request, type, status, more = {}) => {
      const error = await request.then(
        () => assert.fail('was answered'),
        (reason) => reason,
      );
      assert.ok(error instanceof type, `${error.constructor.name}: ${error.message}`);
      assert.equal(error.status, status);
      assert.ok(error.requestID, 'has an id');
      for (const [key, value] of Object.entries(more)) assert.equal(error[key], value, key);
      return error;
    };
    const { BadRequestError, NotFoundError } = OpenAI;
    await fails(client.completions.create(ask({ model: 'gpt-4' })), NotFoundError, 404, {
      code: 'model_not_found',
      param: 'model',
      type: 'invalid_request_error',
    });
    await fails(client.models.retrieve('gpt-4'), NotFoundError, 404);
    await fails(client.completions.create(ask({ temperature: 'hot' })), BadRequestError, 400, {
      param: 'temperature',
    });
    await fails(client.chat.completions.create(chat({ messages: [] })), BadRequestError, 400, {
      param: 'messages',
    });
    await fails(client.chat.completions.create(chat({ n: 1000 })), BadRequestError, 400);
    await fails(client.completions.create(ask({ logit_bias: { 99999999: 1 } })), BadRequestError, 400);
    for (const stream of [false, true]) {
      await fails(
        client.completions.create(ask({ prompt: 'word '.repeat(20_000), stream })),
        BadRequestError,
        400,
        { code: 'context_length_exceeded' },
      );
    }
    await fails(client.embeddings.create({ model, input: '' }), BadRequestError, 400, { param: 'input' });
  });

  test(name('embeds texts, as floats and as base64'), async () => {
    const input = ['The old captain', 'The sea'];
    const { data, usage } = await client.embeddings.create({ model, input }); // it asks for base64
    const floats = await client.embeddings.create({ model, input, encoding_format: 'float' });
    assert.equal(data.length, 2);
    assert.ok(usage.prompt_tokens > 2);
    for (const [at, { embedding, index }] of data.entries()) {
      assert.equal(index, at);
      assert.ok(Math.abs(Math.hypot(...embedding) - 1) < 1e-5);
      const same = floats.data[at].embedding;
      assert.ok(embedding.every((value, i) => Math.abs(value - same[i]) < 1e-3));
    }
  });

  test(name('a stream that is aborted frees its place'), { timeout: 60_000 }, async () => {
    await eventually(nobodyRuns);
    const before = await metric('strata_requests_cancelled_total');
    const stream = await client.completions.create(ask({ ...endless, stream: true }));
    for await (const chunk of stream) {
      assert.ok(chunk.choices[0].text !== undefined);
      break; // the client aborts the request
    }
    await eventually(nobodyRuns);
    assert.equal(await metric('strata_requests_cancelled_total'), before + 1);
    const abort = new AbortController();
    const whole = client.completions.create(ask(endless), { signal: abort.signal });
    await eventually(async () => (await metric('strata_requests_running')) === 1);
    abort.abort();
    await assert.rejects(whole, OpenAI.APIUserAbortError);
    await eventually(nobodyRuns);
    assert.equal(await metric('strata_requests_cancelled_total'), before + 2);
  });

  test(name('too many texts are refused, and the client tries again'), { timeout: 120_000 }, async () => {
    await eventually(nobodyRuns);
    // Most of the queue; whoever asks for as much again is over one client's share of it.
    const many = ask({ ...endless, n: 64, stream: true });
    const streams = [];
    for (let i = 0; i < 3; ++i) streams.push(await client.completions.create(many));
    const error = await client.completions.create(many).then(
      () => assert.fail('was answered'),
      (reason) => reason,
    );
    assert.ok(error instanceof OpenAI.RateLimitError, error.message);
    assert.equal(error.status, 429);
    assert.equal(error.type, 'rate_limit_error');
    assert.ok(Number(error.headers.get('retry-after')) >= 1);
    assert.ok(Number(error.headers.get('retry-after-ms')) >= 1000);

    const statuses = [];
    const patient = clientOf(url, {
      maxRetries: 3,
      fetch: async (...args) => {
        const response = await fetch(...args);
        statuses.push(response.status);
        if (response.status === 429) for (const stream of streams) stream.controller.abort();
        return response;
      },
    });
    const stream = await patient.completions.create(many);
    assert.deepEqual(statuses, [429, 200]);
    stream.controller.abort();
    await eventually(nobodyRuns);
  });

  test(name('too many connections are refused, and the client tries again'), { timeout: 120_000 }, async () => {
    const { port, hostname } = new URL(url);
    const refused = async () => {
      const text = await (await fetch(`${url}/metrics`)).text();
      return Number(/^strata_http_connections_refused_total (.*)$/m.exec(text)[1]);
    };
    const before = await refused();
    // Each is in the middle of a request, so none gives way to another.
    const head = 'POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{';
    const sockets = [];
    const connect = () => {
      const socket = net.connect(Number(port), hostname);
      socket.on('error', () => {});
      socket.on('data', () => {});
      sockets.push(socket);
      return new Promise((resolve) => socket.write(head, resolve));
    };
    await Promise.all(Array.from({ length: 1024 }, connect));
    // Until all are busy: then no connection is kept any more that the client could use again.
    const probe = () =>
      new Promise((resolve) => {
        const socket = net.connect(Number(port), hostname);
        let head = '';
        socket.on('error', () => resolve(''));
        socket.on('data', (data) => {
          head += data;
          socket.destroy();
        });
        socket.on('close', () => resolve(head.split('\r\n')[0]));
        socket.write('GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n');
      });
    while ((await probe()) !== 'HTTP/1.1 503 Service Unavailable') await connect();
    const statuses = [];
    const fetchAll = async (...args) => {
      const response = await fetch(...args);
      statuses.push(response.status);
      if (response.status === 503) {
        assert.equal(response.headers.get('retry-after'), '1');
        for (const socket of sockets) socket.destroy();
      }
      return response;
    };
    const answer = await clientOf(url, { maxRetries: 3, fetch: fetchAll }).completions.create(ask());
    assert.equal(answer.usage.completion_tokens, 24);
    assert.deepEqual(statuses, [503, 200]);
    assert.ok((await refused()) > before);
  });

  const person = {
    type: 'object',
    properties: { name: { type: 'string', maxLength: 20 }, age: { type: 'integer', minimum: 0, maximum: 99 } },
    required: ['name', 'age'],
    additionalProperties: false,
  };
  const isPerson = (value) => {
    assert.deepEqual(Object.keys(value).sort(), ['age', 'name']);
    assert.equal(typeof value.name, 'string');
    assert.ok(Number.isInteger(value.age) && value.age >= 0 && value.age <= 99);
  };

  test(name('writes JSON, and what a schema says'), async () => {
    const json = await client.chat.completions.create(
      chat({ response_format: { type: 'json_object' }, max_tokens: 400 }),
    );
    if (json.choices[0].finish_reason === 'stop') JSON.parse(json.choices[0].message.content);
    const response_format = { type: 'json_schema', json_schema: { name: 'person', strict: true, schema: person } };
    for (const temperature of [0, 1]) {
      const whole = await client.chat.completions.create(chat({ response_format, temperature, max_tokens: 200 }));
      assert.equal(whole.choices[0].finish_reason, 'stop');
      isPerson(JSON.parse(whole.choices[0].message.content));
    }
    const chunks = await collect(
      await client.chat.completions.create(chat({ response_format, max_tokens: 200, stream: true })),
    );
    isPerson(JSON.parse(textOf(chunks)));
  });

  test(name('a schema that cannot be read is an error'), async () => {
    for (const schema of [{ type: 'no such type' }, { type: 'string', pattern: '(' }, { $ref: '#/nowhere' }]) {
      const response_format = { type: 'json_schema', json_schema: { name: 'bad', schema } };
      await assert.rejects(client.chat.completions.create(chat({ response_format })), OpenAI.BadRequestError);
    }
  });

  const tools = [
    {
      type: 'function',
      function: { name: 'save_person', description: 'Saves a person.', parameters: person, strict: true },
    },
  ];
  test(name('calls tools, whole and streamed, and reads their results'), async () => {
    // In parallel this model would call on and on.
    const required = chat({ tools, tool_choice: 'required', parallel_tool_calls: false, max_tokens: 300 });
    const whole = await client.chat.completions.create(required);
    assert.equal(whole.choices[0].finish_reason, 'tool_calls');
    const [call] = whole.choices[0].message.tool_calls;
    assert.equal(call.type, 'function');
    assert.ok(call.id);
    assert.equal(call.function.name, 'save_person');
    isPerson(JSON.parse(call.function.arguments));

    const streamed = await client.chat.completions.stream(required).finalChatCompletion();
    const [again] = streamed.choices[0].message.tool_calls;
    assert.equal(streamed.choices[0].finish_reason, 'tool_calls');
    assert.equal(again.function.name, 'save_person');
    isPerson(JSON.parse(again.function.arguments));

    const named = await client.chat.completions.create(
      chat({
        tools,
        tool_choice: { type: 'function', function: { name: 'save_person' } },
        parallel_tool_calls: false,
        max_tokens: 300,
      }),
    );
    isPerson(JSON.parse(named.choices[0].message.tool_calls[0].function.arguments));

    const after = await client.chat.completions.create(
      chat({
        tools,
        tool_choice: 'none',
        messages: [
          { role: 'user', content: 'Save Ann, 9.' },
          whole.choices[0].message,
          { role: 'tool', tool_call_id: call.id, content: '{"saved":true}' },
        ],
      }),
    );
    assert.equal(after.choices[0].message.tool_calls ?? null, null);
    assert.equal(typeof after.choices[0].message.content, 'string');
  });
}
