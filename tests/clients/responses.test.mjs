// Strata's Responses API through the client library `openai`, as it comes from the registry.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import OpenAI from 'openai';
import { zodTextFormat } from 'openai/helpers/zod';
import { z } from 'zod';
import { clientOf, eventually, metric, model, nobodyRuns, person, urls } from './cluster.mjs';

const ask = (more = {}) => ({ model, input: 'The old captain', max_output_tokens: 24, temperature: 0, ...more });

for (const [at, url] of urls.entries()) {
  const client = clientOf(url);
  const name = (what) => `responses, node ${at}: ${what}`;

  test(name('answers, whole and streamed'), async () => {
    const whole = await client.responses.create(ask());
    assert.equal(whole.object, 'response');
    assert.equal(whole.status, 'incomplete');
    assert.equal(whole.incomplete_details.reason, 'max_output_tokens');
    assert.equal(whole.usage.output_tokens, 24);
    assert.ok(whole.output_text.length > 24);
    const events = [];
    for await (const event of await client.responses.create(ask({ stream: true }))) events.push(event);
    assert.deepEqual(events.map((event) => event.sequence_number), [...events.keys()]);
    assert.equal(events[0].type, 'response.created');
    assert.equal(events.at(-1).type, 'response.incomplete');
    const deltas = events.filter((event) => event.type === 'response.output_text.delta');
    assert.equal(deltas.map((event) => event.delta).join(''), whole.output_text);
    // The client's own reading of a stream, which checks every event.
    const final = await client.responses.stream(ask()).finalResponse();
    assert.equal(final.output_text, whole.output_text);
  });

  test(name('goes on from a response that it stored, until that is deleted'), async () => {
    const first = await client.responses.create(ask());
    const items = [
      { role: 'user', content: 'The old captain' },
      { role: 'assistant', content: first.output_text },
      { role: 'user', content: 'And then?' },
    ];
    const stored = await client.responses.create(ask({ input: 'And then?', previous_response_id: first.id }));
    const whole = await client.responses.create(ask({ input: items }));
    assert.equal(stored.usage.input_tokens, whole.usage.input_tokens);
    assert.equal((await client.responses.retrieve(first.id)).output_text, first.output_text);
    await client.responses.delete(first.id);
    await assert.rejects(client.responses.retrieve(first.id), OpenAI.NotFoundError);
    const unstored = await client.responses.create(ask({ store: false }));
    await assert.rejects(client.responses.retrieve(unstored.id), OpenAI.NotFoundError);
  });

  test(name('writes what a schema says'), async () => {
    const response = await client.responses.parse(
      ask({ max_output_tokens: 300, text: { format: zodTextFormat(person, 'person') } }),
    );
    person.parse(response.output_parsed);
  });

  test(name('calls a tool, whole and streamed, and reads its result'), async () => {
    const tools = [
      {
        type: 'function',
        name: 'save_person',
        description: 'Saves a person.',
        parameters: z.toJSONSchema(person),
        strict: true,
      },
    ];
    const forced = ask({ tools, tool_choice: 'required', parallel_tool_calls: false, max_output_tokens: 300 });
    const whole = await client.responses.create(forced);
    const call = whole.output.find((item) => item.type === 'function_call');
    assert.equal(call.name, 'save_person');
    person.parse(JSON.parse(call.arguments));
    const streamed = await client.responses.stream(forced).finalResponse();
    person.parse(JSON.parse(streamed.output.find((item) => item.type === 'function_call').arguments));
    const result = { type: 'function_call_output', call_id: call.call_id, output: 'saved' };
    const after = await client.responses.create(
      ask({ tools, tool_choice: 'none', input: [result], previous_response_id: whole.id }),
    );
    assert.equal(after.usage.output_tokens, 24);
  });

  test(name('says what is wrong in words that the client understands'), async () => {
    await assert.rejects(client.responses.create(ask({ model: 'gpt-5' })), (error) => {
      assert.ok(error instanceof OpenAI.NotFoundError);
      assert.equal(error.code, 'model_not_found');
      return true;
    });
    await assert.rejects(client.responses.create(ask({ previous_response_id: 'resp_gone' })), OpenAI.APIError);
  });

  test(name('a stream that is aborted frees its place'), { timeout: 60_000 }, async () => {
    await eventually(nobodyRuns);
    const before = await metric('strata_requests_cancelled_total');
    const endless = ask({ max_output_tokens: 1500, ignore_eos: true, stream: true });
    for await (const event of await client.responses.create(endless)) {
      if (event.type === 'response.output_text.delta') break;
    }
    await eventually(nobodyRuns);
    assert.equal(await metric('strata_requests_cancelled_total'), before + 1);
  });
}
