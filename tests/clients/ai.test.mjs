// Strata through Vercel's `ai` and its provider for APIs like OpenAI's, as they come from the registry.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { APICallError, generateObject, generateText, Output, stepCountIs, streamText, tool } from 'ai';
import { z } from 'zod';
import { eventually, metric, model, nobodyRuns, urls } from './cluster.mjs';

for (const [at, url] of urls.entries()) {
  const provider = createOpenAICompatible({
    name: 'strata',
    baseURL: `${url}/v1`,
    includeUsage: true,
    supportsStructuredOutputs: true,
  });
  const name = (what) => `ai, node ${at}: ${what}`;
  const asked = {
    model: provider.chatModel(model),
    prompt: 'The old captain',
    maxOutputTokens: 24,
    temperature: 0.4,
    seed: 7,
    maxRetries: 0,
  };

  test(name('writes a text, whole and streamed'), async () => {
    const whole = await generateText(asked);
    assert.equal(whole.finishReason, 'length');
    assert.equal(whole.usage.outputTokens, 24);
    assert.ok(whole.usage.inputTokens > 0);
    assert.equal((await generateText(asked)).text, whole.text);
    const streamed = streamText(asked);
    let text = '';
    let pieces = 0;
    for await (const piece of streamed.textStream) {
      text += piece;
      ++pieces;
    }
    assert.equal(text, whole.text);
    assert.ok(pieces > 10);
    assert.equal(await streamed.finishReason, 'length');
    assert.equal((await streamed.usage).outputTokens, 24);
  });

  test(name('completes a text without a chat'), async () => {
    const whole = await generateText({ ...asked, model: provider.completionModel(model) });
    assert.equal(whole.usage.outputTokens, 24);
    assert.ok(whole.text.length > 24);
  });

  test(name('ends at a stop string'), async () => {
    const { text } = await generateText({ ...asked, maxOutputTokens: 64 });
    const stop = text.slice(20, 27);
    const stopped = await generateText({ ...asked, maxOutputTokens: 1900, stopSequences: [stop] });
    assert.equal(stopped.text, text.slice(0, text.indexOf(stop)));
    assert.equal(stopped.finishReason, 'stop');
  });

  test(name('knows errors for what they are'), async () => {
    const error = await generateText({ ...asked, model: provider.chatModel('gpt-4') }).then(
      () => assert.fail('was answered'),
      (reason) => reason,
    );
    assert.ok(APICallError.isInstance(error), String(error));
    assert.equal(error.statusCode, 404);
    assert.equal(error.isRetryable, false);
    assert.match(error.message, /gpt-4/); // read from the answer's own form
    assert.equal(error.data.error.code, 'model_not_found');
  });

  test(name('a stream that is aborted frees its place'), { timeout: 60_000 }, async () => {
    await eventually(nobodyRuns);
    const before = await metric('strata_requests_cancelled_total');
    const abort = new AbortController();
    const { textStream } = streamText({
      ...asked,
      maxOutputTokens: 1900,
      providerOptions: { strata: { ignore_eos: true } },
      abortSignal: abort.signal,
    });
    for await (const piece of textStream) {
      if (piece.length > 0) abort.abort();
    }
    await eventually(nobodyRuns);
    assert.equal(await metric('strata_requests_cancelled_total'), before + 1);
  });

  const person = z.object({ name: z.string().max(20), age: z.number().int().min(0).max(99) });

  test(name('writes objects as a schema says'), async () => {
    const { object } = await generateObject({ ...asked, maxOutputTokens: 300, schema: person });
    person.parse(object);
    const { output } = await generateText({
      ...asked,
      maxOutputTokens: 300,
      output: Output.object({ schema: person }),
    });
    person.parse(output);
  });

  test(name('calls tools, whole and streamed'), async () => {
    const saved = [];
    const tools = {
      savePerson: tool({
        description: 'Saves a person.',
        inputSchema: person,
        execute: async (input) => {
          saved.push(input);
          return { saved: true };
        },
      }),
    };
    const call = {
      ...asked,
      tools,
      toolChoice: 'required',
      maxOutputTokens: 300,
      stopWhen: stepCountIs(1),
      // This model would call on and on.
      providerOptions: { strata: { parallel_tool_calls: false } },
    };
    const { toolCalls, finishReason } = await generateText(call);
    assert.equal(finishReason, 'tool-calls');
    assert.equal(toolCalls[0].toolName, 'savePerson');
    person.parse(toolCalls[0].input);
    const streamed = streamText(call);
    await streamed.consumeStream();
    person.parse((await streamed.toolCalls)[0].input);
    assert.equal(saved.length, 2);
  });
}
