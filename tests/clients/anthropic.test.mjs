// Strata through the client library `@anthropic-ai/sdk`, as it comes from the registry.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import Anthropic from '@anthropic-ai/sdk';
import { zodOutputFormat } from '@anthropic-ai/sdk/helpers/zod';
import { z } from 'zod';
import { eventually, metric, model, nobodyRuns, person, urls } from './cluster.mjs';

const ask = (more = {}) => ({
  model,
  messages: [{ role: 'user', content: 'The old captain' }],
  max_tokens: 24,
  temperature: 0,
  ...more,
});

for (const [at, url] of urls.entries()) {
  const client = new Anthropic({ baseURL: url, apiKey: 'unused', maxRetries: 0 });
  const name = (what) => `anthropic, node ${at}: ${what}`;

  test(name('lists its models'), async () => {
    const models = [];
    for await (const each of client.models.list()) models.push(each);
    assert.deepEqual(models.map((each) => [each.type, each.id, each.display_name]), [['model', model, model]]);
    assert.equal((await client.models.retrieve(model)).id, model);
  });

  test(name('answers, whole and streamed, and counts the same tokens'), async () => {
    const { messages } = ask();
    const whole = await client.messages.create(ask());
    assert.equal(whole.role, 'assistant');
    assert.equal(whole.stop_reason, 'max_tokens');
    assert.equal(whole.usage.output_tokens, 24);
    assert.equal(whole.content[0].type, 'text');
    let text = '';
    const streamed = await client.messages.stream(ask()).on('text', (piece) => (text += piece)).finalMessage();
    assert.deepEqual(streamed.content, whole.content);
    assert.equal(text, whole.content[0].text);
    assert.equal(streamed.usage.output_tokens, 24);
    assert.equal(streamed.stop_reason, 'max_tokens');
    const { input_tokens } = await client.messages.countTokens({ model, messages });
    assert.equal(input_tokens, whole.usage.input_tokens + whole.usage.cache_read_input_tokens);
  });

  test(name('takes a system prompt in parts, and ends at a stop string'), async () => {
    const parts = [{ type: 'text', text: 'Tell stories.', cache_control: { type: 'ephemeral' } }];
    const first = await client.messages.create(ask({ system: parts, max_tokens: 48 }));
    const { text } = first.content[0];
    const stop = text.trim().slice(20, 27);
    const stopped = await client.messages.create(
      ask({ system: parts, max_tokens: 1500, stop_sequences: [stop] }),
    );
    assert.equal(stopped.stop_reason, 'stop_sequence');
    assert.equal(stopped.stop_sequence, stop);
    assert.equal(stopped.content[0].text, text.slice(0, text.indexOf(stop)));
  });

  const tools = [
    {
      name: 'save_person',
      description: 'Saves a person.',
      input_schema: {
        type: 'object',
        properties: { name: { type: 'string', maxLength: 20 }, age: { type: 'integer', minimum: 0, maximum: 99 } },
        required: ['name', 'age'],
        additionalProperties: false,
      },
    },
  ];

  test(name('calls a tool, whole and streamed, and reads its result'), async () => {
    for (const type of ['any', 'tool']) {
      const tool_choice = { type, disable_parallel_tool_use: true };
      if (type === 'tool') tool_choice.name = 'save_person';
      const forced = ask({ tools, tool_choice, max_tokens: 300 });
      const whole = await client.messages.create(forced);
      assert.equal(whole.stop_reason, 'tool_use');
      const call = whole.content.find((block) => block.type === 'tool_use');
      assert.equal(call.name, 'save_person');
      person.parse(call.input);
      const streamed = await client.messages.stream(forced).finalMessage();
      person.parse(streamed.content.find((block) => block.type === 'tool_use').input);
      const after = await client.messages.create(
        ask({
          tools,
          tool_choice: { type: 'none' },
          messages: [
            { role: 'user', content: 'Save Ann, 9.' },
            { role: 'assistant', content: whole.content },
            { role: 'user', content: [{ type: 'tool_result', tool_use_id: call.id, content: 'saved' }] },
          ],
        }),
      );
      assert.equal(after.stop_reason, 'max_tokens');
      assert.ok(after.content.every((block) => block.type === 'text'));
    }
  });

  test(name('writes what a schema says'), async () => {
    // The client leaves out bounds of texts and numbers.
    const weather = z.object({ kind: z.enum(['calm', 'storm']), warm: z.boolean() });
    const message = await client.messages.parse(
      ask({ max_tokens: 100, output_config: { format: zodOutputFormat(weather) } }),
    );
    weather.parse(message.parsed_output);
  });

  test(name('says what is wrong in words that the client understands'), async () => {
    const fails = async (request, type, status, kind) => {
      const error = await request.then(
        () => assert.fail('was answered'),
        (reason) => reason,
      );
      assert.ok(error instanceof type, `${error.constructor.name}: ${error.message}`);
      assert.equal(error.status, status);
      assert.equal(error.error.type, 'error');
      assert.equal(error.error.error.type, kind);
      assert.ok(error.requestID, 'has an id');
    };
    const { BadRequestError, NotFoundError } = Anthropic;
    await fails(client.messages.create(ask({ model: 'claude-opus-4' })), NotFoundError, 404, 'not_found_error');
    await fails(client.messages.create(ask({ messages: [] })), BadRequestError, 400, 'invalid_request_error');
    await fails(client.models.retrieve('claude-opus-4'), NotFoundError, 404, 'not_found_error');
  });

  test(name('a stream that is aborted frees its place'), { timeout: 60_000 }, async () => {
    await eventually(nobodyRuns);
    const before = await metric('strata_requests_cancelled_total');
    const stream = client.messages.stream(ask({ max_tokens: 1500, ignore_eos: true }));
    for await (const event of stream) {
      if (event.type === 'content_block_delta') break;
    }
    stream.abort();
    await eventually(nobodyRuns);
    assert.equal(await metric('strata_requests_cancelled_total'), before + 1);
  });
}
